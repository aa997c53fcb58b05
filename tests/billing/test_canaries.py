"""No prompt, no answer, no key and no secret is in a log, a metric, a trace, an error or a table.

Real processes serve every kind of request, good and bad, each with a canary in it; then all that
they left is looked through for the canaries, in clear and in the ways that a text is usually
encoded. `tests/fixtures/canaries.py` listens to the rest of the suite.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest
from pydantic import SecretStr
from sqlalchemy import make_url, text

from app.db import Database
from app.launcher.ports import LOOPBACK, free_port
from app.launcher.postgres import PostgresServer
from app.settings import Settings
from lora.base_spec import BaseSpec
from tests.billing.canary_scene import (
    ADMIN_KEY,
    CONFIG,
    IDEMPOTENCY_KEY,
    PROMPT,
    VALUE,
    WRONG_KEYS,
    Scene,
)
from tests.builders.canaries import Canaries
from tests.builders.waiting import eventually
from tests.chart.observability.collector import Collector
from tests.faults.stack import Stack
from tests.fixtures.servers import TestDatabase, new_database

PEPPER = "canary-of-the-pepper-b19e52"
QUEUE_SECRET = "canary-of-the-queue-e8f330"
ENVELOPE_KEY = "canary-of-an-envelope-key-of-files-77d0"
TOLD_ALL = ("adapter", "bad value")
"""What its tenant may be told again, and a table may hold: it is neither prompt nor secret."""


@dataclass(frozen=True, slots=True)
class Watched:
    """An installation, and where it tells how it is."""

    stack: Stack
    collector: Collector
    ports: dict[str, int]

    async def metrics(self) -> dict[str, bytes]:
        """The worker's and the engine's."""
        async with httpx.AsyncClient(timeout=60) as client:
            return {
                name: (await client.get(f"http://{LOOPBACK}:{port}/metrics")).content
                for name, port in self.ports.items()
            }


@contextmanager
def traced_to(collector: Collector) -> Iterator[None]:
    """Every process that is started within sends its spans there, soon."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", collector.endpoint)
        patch.setenv("OTEL_BSP_SCHEDULE_DELAY", "200")
        yield


@pytest.fixture(scope="module")
def database_of_canaries(
    postgres: PostgresServer, registry_template: str
) -> Iterator[TestDatabase]:
    yield from new_database(postgres, f"TEMPLATE {registry_template} STRATEGY wal_log")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("canaries")


@pytest.fixture(scope="module")
def watched(
    database_of_canaries: TestDatabase, tiny_base_folder: Path, folder: Path
) -> Iterator[Watched]:
    """An API process, a stub engine, and a worker in its own role."""
    settings = Settings(
        database_url=database_of_canaries.app_url,
        redis_url="redis://none",
        queue_secret=SecretStr(QUEUE_SECRET),
        model=tiny_base_folder,
        adapter_store=str(folder / "store"),
        data_dir=folder / "data",
        key_pepper=SecretStr(PEPPER),
        admin_key=SecretStr(ADMIN_KEY),
    )
    ports = {"worker": free_port(), "engine": free_port()}
    command = ("tests.stub_engine", "--step-ms", "5", "--model", str(tiny_base_folder))
    command += ("--health-port", str(ports["engine"]))
    files = {
        "TENFOLD_FILE_STORE": str(folder / "files"),
        "TENFOLD_ENVELOPE_KEYS": ENVELOPE_KEY,
    }
    worker = {
        **files,
        "TENFOLD_DATABASE_URL": database_of_canaries.worker_url,
        "TENFOLD_HEALTH_PORT": str(ports["worker"]),
    }
    with (
        Collector() as collector,
        traced_to(collector),
        Stack(
            settings,
            folder / "stack",
            command,
            num_engines=1,
            worker_options=worker,
            api_options={**files, "TENFOLD_ADMIN_KEY": ADMIN_KEY},
        ) as stack,
    ):
        yield Watched(stack, collector, ports)


@pytest.fixture
async def scene(watched: Watched, tiny_base: BaseSpec) -> AsyncIterator[Scene]:
    opened = Scene(watched.stack.apis[0], tiny_base)
    await opened.open()
    yield opened
    await opened.close()


async def dump(database: TestDatabase) -> bytes:
    """Every row of every table, as text."""
    owner = Database(database.owner_url, pool_size=1)
    async with owner.session() as session:
        names = await session.scalars(
            text("SELECT tablename FROM pg_tables WHERE schemaname IN ('public')")
        )
        rows = [
            row
            for name in list(names)
            for row in await session.scalars(text(f"SELECT t::text FROM {name} t"))
        ]
    await owner.close()
    return "\n".join(rows).encode()


def read_logs(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.rglob("*.log")}


async def all_is_written(database: TestDatabase) -> None:
    """Until no request is open in the ledger."""
    owner = Database(database.owner_url, pool_size=1)

    async def is_written() -> bool:
        async with owner.session() as session:
            query = text("SELECT count(*) FROM requests WHERE state = 'accepted'")
            return await session.scalar(query) == 0

    await eventually(is_written, timeout_s=60)
    await owner.close()


async def all_is_traced(collector: Collector) -> set[str]:
    """The services whose spans have come, once both have sent some."""

    async def is_traced() -> bool:
        return {"tenfold-api", "tenfold-engine"} <= {span["service"] for span in collector.spans}

    await eventually(is_traced, timeout_s=30)
    return {span["name"] for span in collector.spans}


@pytest.mark.timeout(240)
async def test_no_canary_is_in_a_log_a_metric_a_trace_an_error_or_a_table(
    scene: Scene,
    watched: Watched,
    folder: Path,
    database_of_canaries: TestDatabase,
    record_property: Any,
) -> None:
    await scene.serve()
    await scene.refuse()
    told_of_batches = await scene.run_batches()
    await all_is_written(database_of_canaries)
    spans = await all_is_traced(watched.collector)

    passwords = [
        make_url(url).password or ""
        for url in (database_of_canaries.app_url, database_of_canaries.worker_url)
    ]
    canaries = {
        "prompt": PROMPT,
        "bad value": VALUE,
        "adapter": CONFIG,
        "idempotency key": IDEMPOTENCY_KEY,
        "pepper": PEPPER,
        "queue secret": QUEUE_SECRET,
        "envelope key": ENVELOPE_KEY,
        "admin key": ADMIN_KEY,
        "redis password": "of-the-faults",
        **{f"wrong key {i}": key for i, key in enumerate(WRONG_KEYS)},
        **{f"key {i}": secret for i, secret in enumerate(scene.secrets)},
        **{f"database password {i}": each for i, each in enumerate(passwords)},
        **{f"answer {i}": each for i, each in enumerate(scene.answers)},
    }
    of_all = Canaries(canaries)
    of_told = Canaries({name: each for name, each in canaries.items() if name not in TOLD_ALL})
    logs, metrics = read_logs(folder), await watched.metrics()
    assert {"worker.log", "api-0.log", "engine-0-0.log"} <= logs.keys()
    assert len(logs["api-0.log"]) > 10_000 and len(scene.refusals) > 45 and scene.answers
    assert {"engine.generate", "queue.wait"} <= spans and len(told_of_batches) == 3
    assert b"tenfold_ledger_records" in metrics["worker"]
    assert b"tenfold_engine_stage" in metrics["engine"]
    found = [
        *(f"{name}: {hit}" for name, log in logs.items() for hit in of_all.found_in(log)),
        *(f"{name}: {hit}" for name, page in metrics.items() for hit in of_all.found_in(page)),
        *(f"metrics: {hit}" for hit in of_all.found_in(await scene.metrics())),
        *(f"span: {hit}" for hit in of_all.found_in(str(watched.collector.spans).encode())),
        *(f"refusal: {hit}" for body in scene.refusals for hit in of_told.found_in(body)),
        *(f"batch: {hit}" for body in told_of_batches for hit in of_told.found_in(body)),
        *(f"table: {hit}" for hit in of_told.found_in(await dump(database_of_canaries))),
    ]
    record_property("canaries found", len(found))
    assert found == []
