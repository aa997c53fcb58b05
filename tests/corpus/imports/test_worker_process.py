"""A real worker process imports by itself what was asked for."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from app.settings import Settings
from tests.builders.https_server import HttpsServer
from tests.builders.operator import Operator, Tenant
from tests.builders.waiting import eventually
from tests.chart.certificates import Authority
from tests.corpus.imports.conftest import IMPORTS
from tests.fixtures.processes import running

HOST = "localhost"  # a name that the machine itself resolves


@pytest.fixture
def server(authority: Authority) -> Iterator[HttpsServer]:
    with HttpsServer(HOST, authority.certify(HOST)).running() as server:
        yield server


@pytest.fixture
def settings(settings: Settings, server: HttpsServer) -> Settings:
    return settings.model_copy(update={"import_allow": server.url})


async def test_a_worker_imports_what_was_asked_for(
    settings: Settings,
    operator: Operator,
    acme: Tenant,
    authority: Authority,
    server: HttpsServer,
    files: dict[str, bytes],
    tmp_path: Path,
) -> None:
    server.publish("bots/one", files)
    environment = {
        "TENFOLD_IMPORT_ALLOW": server.url,
        "TENFOLD_IMPORT_NETWORKS": "127.0.0.0/8, ::1/128",
        "TENFOLD_IMPORT_CA_FILE": str(authority.path),
    }
    with running("app.worker", settings, tmp_path / "worker.log", environment):
        job = await operator.done("POST", IMPORTS, json={"source": f"{server.url}/bots/one"})

        async def is_done() -> bool:
            shown = await operator.done("GET", f"{IMPORTS}/{job['id']}")
            assert shown["state"] in ("queued", "running", "succeeded"), shown
            return bool(shown["state"] == "succeeded")

        await eventually(is_done, timeout_s=90)
    versions = await operator.done("GET", "/tenants/acme/adapters/bot/versions")
    assert [row["version"] for row in versions["data"]] == ["v1"]
