"""The real processes, killed: every accepted request ends once."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractContextManager, asynccontextmanager, contextmanager
from pathlib import Path

import httpx
import pytest

from app.settings import Settings
from engine.transport.usage import CHECKPOINT_TOKENS
from tests.app.requests.conftest import Rows
from tests.app.requests.test_ledger_of_requests import PATH, body
from tests.builders.operator import OPERATOR
from tests.builders.stub_engine import StubEngine
from tests.builders.waiting import eventually, until, wait_until
from tests.faults.processes import Nursery, Process
from tests.fixtures.processes import ApiProcess, born

NUM_STREAMS = 6
NUM_RUNNING = 4
BUSY_MACHINE_S = 0.5
WORKER = {"TENFOLD_API_LOST_AFTER_S": "1", "TENFOLD_SWEEP_INTERVAL_S": "0.2"}

Worker = Callable[[str], AbstractContextManager[Process]]


async def new_key(api_process: ApiProcess) -> dict[str, str]:
    async with httpx.AsyncClient(
        base_url=f"{api_process.admin_url}/admin/v1", headers=OPERATOR, timeout=30
    ) as admin:
        (await admin.post("/tenants", json={"slug": "acme"})).raise_for_status()
        key = (await admin.post("/tenants/acme/keys", json={})).raise_for_status().json()
    return {"x-api-key": key["secret"]}


@pytest.fixture
def engine(redis_url: str) -> Iterator[StubEngine]:
    """Has room for all but two."""
    with StubEngine(redis_url, step_s=0.01, max_running=NUM_RUNNING) as stub:
        yield stub


@pytest.fixture
def worker(nursery: Nursery, settings: Settings, tmp_path: Path) -> Worker:
    @contextmanager
    def started(name: str) -> Iterator[Process]:
        log_path = tmp_path / f"{name}.log"
        with born(nursery, "app.worker", settings, log_path, WORKER) as process:
            wait_until(lambda: "worker_listening" in log_path.read_text(), timeout_s=60)
            yield process

    return started


@asynccontextmanager
async def streams_of_a_process_that_is_killed(
    api_process: ApiProcess, engine: StubEngine
) -> AsyncIterator[None]:
    """The block runs after the kill."""
    headers = await new_key(api_process)
    async with httpx.AsyncClient(base_url=api_process.url, headers=headers) as client:
        calls = [
            asyncio.create_task(client.post(PATH, json=body(500, stream=True), timeout=60))
            for _ in range(NUM_STREAMS)
        ]
        await until(lambda: engine.num_running == NUM_RUNNING, timeout_s=30)
        await until(lambda: engine.num_published_batches > 80, timeout_s=30)
        api_process.process.kill()
        yield
        await asyncio.gather(*calls, return_exceptions=True)


async def all_lost(rows: Rows) -> bool:
    states = [row["state"] for row in await rows.requests()]
    if states != ["ended"] * NUM_STREAMS:
        return False
    finals = await rows.finals()
    assert len(finals) == NUM_STREAMS
    assert {row["finish_reason"] for row in finals} == {"api_lost"}
    return True


async def test_an_engine_stops_working_for_a_killed_api_process_and_says_what_it_used(
    api_process: ApiProcess,
    engine: StubEngine,
    rows: Rows,
    worker: Worker,
) -> None:
    async with streams_of_a_process_that_is_killed(api_process, engine):
        died_at = time.monotonic()
        await until(lambda: len(engine.aborted) >= NUM_RUNNING)
        assert time.monotonic() - died_at < 2.0 + BUSY_MACHINE_S
    with worker("worker"):
        await eventually(lambda: all_lost(rows), timeout_s=40)
    generated = [row["num_generated_tokens"] for row in await rows.finals()]
    assert sorted(generated)[-NUM_RUNNING] > 64


async def test_with_engine_api_and_worker_killed_a_request_ends_once_at_its_last_checkpoint(
    api_process: ApiProcess,
    engine: StubEngine,
    rows: Rows,
    worker: Worker,
) -> None:
    async with streams_of_a_process_that_is_killed(api_process, engine):
        await asyncio.to_thread(engine.kill)
    with worker("first") as first:
        first.kill()
        await asyncio.to_thread(first.wait)
    with worker("second"):
        await eventually(lambda: all_lost(rows), timeout_s=40)
    generated = [row["num_generated_tokens"] for row in await rows.finals()]
    assert generated.count(0) == NUM_STREAMS - NUM_RUNNING
    assert {number % CHECKPOINT_TOKENS for number in generated} == {0}
