"""A worker's /metrics say which batches run and wait, how far they are, and how they ended."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from app.db import Database
from app.metrics.worker import WorkerMetrics
from app.requests.jobs import LedgerJobs
from app.settings import Settings
from tests.app.completions.test_telemetry import value
from tests.billing.batches.conftest import Working
from tests.billing.batches.inputs import Submitter, chat_line
from tests.builders.operator import Tenant
from tests.builders.stub_engine import StubEngine
from tests.builders.waiting import eventually, until
from tests.fixtures.servers import TestDatabase


@pytest.fixture
async def metrics(settings: Settings, database: TestDatabase) -> AsyncIterator[WorkerMetrics]:
    """Of a worker whose role is a worker's."""
    registry = Database(database.worker_url, pool_size=3)
    own = settings.model_copy(update={"database_url": database.worker_url})
    ledger = LedgerJobs(registry, own)
    opened = WorkerMetrics(registry, settings.redis_url, ledger)
    yield opened
    await opened.close()
    await ledger.close()
    await registry.close()


async def test_a_workers_metrics_show_its_batches_and_their_lines(
    submitter: Submitter,
    globex: Tenant,
    engine: StubEngine,
    working: Working,
    metrics: WorkerMetrics,
) -> None:
    async def read(name: str, *labels: str) -> float | None:
        await metrics.look()
        return value(metrics.render().decode(), f"tenfold_{name}", *labels)

    async def nothing_waits() -> bool:
        return await read("batches_waiting") == 0

    engine.pause()
    good = [chat_line(str(i)) for i in range(4)]
    batch = await submitter.submit([*good, chat_line("bad", temperature="hot")])
    other = await Submitter(submitter.api, globex).submit(b"no line\n")
    assert await read("batches_waiting") == 2
    assert await read("batches_oldest_wait_seconds") > 0
    assert await read("batches_running") == 0
    async with working(metrics=metrics.batches, batch_concurrency=2):
        await until(lambda: engine.num_running == 2, timeout_s=30)
        await eventually(nothing_waits, timeout_s=30)
        assert await read("batches_running") >= 1
        assert await read("batch_lines_running") == 2
        assert await read("batch_lines_waiting") == 3
        engine.resume()
        await submitter.ended(batch["id"])
        await Submitter(submitter.api, globex).ended(other["id"])
    assert await read("batch_lines_answered_total", 'outcome="completed"') == 4
    assert await read("batch_lines_answered_total", 'outcome="failed"') == 1
    assert await read("batches_ended_total", 'outcome="completed"') == 1
    assert await read("batches_ended_total", 'outcome="failed"') == 1
    assert await read("batches_ended_total", 'outcome="expired"') == 0
    for name in ("batches_running", "batch_lines_running", "batch_lines_waiting"):
        assert await read(name) == 0, name
    shown = metrics.render().decode()
    assert batch["id"] not in shown and globex.id not in shown


async def test_what_is_not_known_of_batches_is_not_a_number_and_never_zero(
    settings: Settings, redis_url: str
) -> None:
    down = Database("postgresql+asyncpg://tenfold_app:none@127.0.0.1:1/none", pool_size=1)
    ledger = LedgerJobs(down, settings)
    metrics = WorkerMetrics(down, settings.redis_url, ledger)
    await metrics.look()
    number = value(metrics.render().decode(), "tenfold_batches_waiting")
    assert number is not None and number != number
    await metrics.close()
    await ledger.close()
    await down.close()
