"""The ledger: a worker's consumer that runs when a test says so, and the rows as they are."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest
from redis.asyncio import Redis
from sqlalchemy import make_url, text

from app.context import AppContext
from app.db import Database
from app.requests.consumer import UsageConsumer
from engine.transport.connection import open_async_redis
from tests.builders.operator import Operator, Tenant
from tests.builders.queue_secret import QUEUE_SECRET
from tests.builders.relay import Relay
from tests.fixtures.servers import TestDatabase


class Rows:
    """Everything that is in the two tables, seen by their owner."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def requests(self) -> list[dict[str, Any]]:
        return await self._all("SELECT *, xmin::text FROM requests ORDER BY request_id")

    async def events(self) -> list[dict[str, Any]]:
        return await self._all(
            "SELECT *, xmin::text FROM request_events ORDER BY request_id, event"
        )

    async def finals(self) -> list[dict[str, Any]]:
        return [row for row in await self.events() if row["event"] == "final"]

    async def _all(self, query: str) -> list[dict[str, Any]]:
        async with self._database.session() as session:
            return [dict(row) for row in (await session.execute(text(query))).mappings()]


@pytest.fixture
async def rows(database: TestDatabase) -> AsyncIterator[Rows]:
    owner = Database(database.owner_url, pool_size=1)
    yield Rows(owner)
    await owner.close()


@pytest.fixture
async def registry(database: TestDatabase) -> AsyncIterator[Database]:
    """The registry as a worker sees it."""
    opened = Database(database.app_url, pool_size=3)
    yield opened
    await opened.close()


@pytest.fixture
async def queue(redis_url: str) -> AsyncIterator[Redis]:
    async with open_async_redis(redis_url, max_connections=4) as client:
        yield client


@pytest.fixture
def consumer(registry: Database, queue: Redis) -> UsageConsumer:
    return UsageConsumer(registry, queue, secret=QUEUE_SECRET)


@pytest.fixture
async def relay(database: TestDatabase) -> AsyncIterator[Relay]:
    """Stands between whoever uses `relayed_url` and Postgres."""
    port = make_url(database.app_url).port
    assert port is not None
    async with Relay(lambda: port) as relay:
        yield relay


@pytest.fixture
def relayed_url(database: TestDatabase, relay: Relay) -> str:
    url = make_url(database.app_url).set(port=relay.port)
    return url.render_as_string(hide_password=False)


@pytest.fixture
async def acme(operator: Operator, context: AppContext) -> Tenant:
    return await operator.new_tenant("acme")
