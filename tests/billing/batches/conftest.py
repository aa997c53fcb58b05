"""A tenant, an engine that says what a test wants, and a worker's batches in this process."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Protocol

import httpx
import pytest

from app.batches.jobs import BatchJobs
from app.context import AppContext
from app.db import Database
from app.metrics.batches import BatchMetrics
from app.settings import Settings
from tests.app.requests.conftest import Rows
from tests.billing.batches.inputs import Submitter
from tests.builders.clock import Clock
from tests.builders.operator import Operator, Tenant
from tests.builders.stub_engine import StubEngine
from tests.fixtures.servers import TestDatabase


class Working(Protocol):
    """`async with working(batch_concurrency=2): ...`: a worker runs batches in the block."""

    def __call__(
        self,
        *,
        turn_s: float = 120.0,
        metrics: BatchMetrics | None = None,
        **changes: object,
    ) -> AbstractAsyncContextManager[BatchJobs]: ...


@pytest.fixture
async def acme(operator: Operator) -> Tenant:
    return await operator.new_tenant("acme")


@pytest.fixture
async def globex(operator: Operator) -> Tenant:
    return await operator.new_tenant("globex")


@pytest.fixture
def engine(redis_url: str) -> Iterator[StubEngine]:
    """Says every prompt again, up to `max_tokens`."""
    with StubEngine(redis_url) as stub:
        yield stub


@pytest.fixture
def submitter(api: httpx.AsyncClient, acme: Tenant) -> Submitter:
    return Submitter(api, acme)


@pytest.fixture
async def rows(database: TestDatabase) -> AsyncIterator[Rows]:
    owner = Database(database.owner_url, pool_size=1)
    yield Rows(owner)
    await owner.close()


@pytest.fixture
def working(
    settings: Settings, database: TestDatabase, clock: Clock, context: AppContext
) -> Working:
    """As the role that workers have."""

    @asynccontextmanager
    async def run(
        *, turn_s: float = 120.0, metrics: BatchMetrics | None = None, **changes: object
    ) -> AsyncIterator[BatchJobs]:
        url = database.worker_url
        own = settings.model_copy(update={"database_url": url, **changes})
        registry, stopping = Database(url, pool_size=6), asyncio.Event()
        jobs = BatchJobs(registry, own, clock.now, turn_s=turn_s, metrics=metrics)
        task = asyncio.create_task(jobs.run(stopping))
        try:
            yield jobs
        finally:
            stopping.set()
            await task
            await registry.close()

    return run
