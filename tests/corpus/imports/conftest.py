"""A worker that imports, web servers that it may ask, names that resolve as a test says."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest

from app.audit.trail import worker_trail
from app.context import AppContext
from app.imports.publishers import Publishers
from app.imports.running import ImportRunner
from app.settings import Settings
from lora.base_spec import BaseSpec
from tests.builders.adapter_files import adapter_files
from tests.builders.https_server import HttpsServer
from tests.builders.operator import Operator, Tenant
from tests.chart.certificates import Authority, new_authority

LOOPBACK = "127.0.0.1"
IMPORTS = "/tenants/acme/adapters/bot/imports"


@dataclass
class Names:
    """A resolver: the answers for a name, one after the other; the last one stays."""

    answers: dict[str, list[list[str]]] = field(default_factory=dict)
    asked: list[str] = field(default_factory=list)

    async def resolve(self, host: str, port: int) -> list[str]:
        self.asked.append(host)
        answers = self.answers.get(host, [[]])
        return answers.pop(0) if len(answers) > 1 else answers[0]


@pytest.fixture(scope="session")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return new_authority(tmp_path_factory.mktemp("trust") / "ca")


@pytest.fixture
def names() -> Names:
    return Names(
        {name: [[LOOPBACK]] for name in ("models.test", "hub.test", "stranger.test", "mirror.test")}
    )


@pytest.fixture
def models(authority: Authority) -> Iterator[HttpsServer]:
    """https://models.test, from where imports are allowed."""
    with HttpsServer("models.test", authority.certify("models.test")).running() as server:
        yield server


@pytest.fixture
def stranger(authority: Authority) -> Iterator[HttpsServer]:
    """https://stranger.test, which nobody allows."""
    with HttpsServer("stranger.test", authority.certify("stranger.test")).running() as server:
        yield server


@pytest.fixture
def hub(authority: Authority) -> Iterator[HttpsServer]:
    with HttpsServer("hub.test", authority.certify("hub.test")).running() as server:
        yield server


@pytest.fixture
def settings(
    settings: Settings, models: HttpsServer, hub: HttpsServer, authority: Authority
) -> Settings:
    return settings.model_copy(
        update={
            "import_allow": f"{models.url}, hf://acme-org",
            "import_networks": f"{LOOPBACK}/32",
            "import_ca_file": authority.path,
            "import_hub": hub.url,
            "max_upload_bytes": 200_000,
        }
    )


@pytest.fixture
def files(tiny_base: BaseSpec) -> dict[str, bytes]:
    return adapter_files(tiny_base)


@pytest.fixture
def runner(context: AppContext, names: Names) -> ImportRunner:
    return new_runner(context, names)


def new_runner(context: AppContext, names: Names) -> ImportRunner:
    options = {"client_options": {"allow_http": True}}  # of buckets: the tests' have no TLS
    publishers = Publishers(context.settings, names.resolve, options)

    peppers = context.settings.key_pepper.get_secret_value()
    return ImportRunner(
        context,
        publishers.open,
        lambda job_id: worker_trail(peppers, job_id, context.now()),
        context.now,
        heartbeat_s=0.05,
    )


@dataclass(frozen=True, slots=True)
class Importing:
    """acme's imports, asked for by the operator."""

    operator: Operator
    runner: ImportRunner

    async def begin(self, source: str, **fields: Any) -> dict[str, Any]:
        return await self.operator.done("POST", IMPORTS, json={"source": source, **fields})

    async def get(self, job: dict[str, Any]) -> dict[str, Any]:
        return await self.operator.done("GET", f"{IMPORTS}/{job['id']}")

    async def run(self, source: str, **fields: Any) -> dict[str, Any]:
        """The import after a worker has looked at it once."""
        job = await self.begin(source, **fields)
        assert await self.runner.run_next()
        return await self.get(job)


@pytest.fixture
def importing(operator: Operator, runner: ImportRunner, acme: Tenant) -> Importing:
    return Importing(operator, runner)
