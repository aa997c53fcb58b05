"""A worker that does its share when a test says so, and what Redis and Postgres count meanwhile."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime

import pytest
from redis.asyncio import Redis
from sqlalchemy import text

from app.admission.settlement import Settler
from app.context import AppContext
from app.db import Database
from app.requests.consumer import UsageConsumer
from engine.messages import EngineRequest
from engine.transport import keys
from engine.transport.connection import open_async_redis
from tests.builders.operator import Operator, Tenant
from tests.builders.queue_secret import QUEUE_SECRET
from tests.builders.stub_engine import StubEngine
from tests.fixtures.servers import TestDatabase

IM_END = 258  # the tiny base's end of a turn


@dataclass(frozen=True, slots=True)
class Books:
    """The two places where spend is counted."""

    owner: Database
    redis: Redis
    consumer: UsageConsumer
    settler: Settler

    async def take_in(self) -> None:
        """Write all that was used into the ledger, and settle it."""
        while await self.consumer.run_once() or not self.consumer.is_caught_up:
            pass

    async def enforced(self, subject: str) -> int:
        """Tokens of this month that limits count: settled and reserved."""
        return await self.settled(subject) + await self.reserved(subject)

    async def settled(self, subject: str) -> int:
        return await self._field("spent", subject)

    async def reserved(self, subject: str) -> int:
        return await self._field("reserved", subject)

    async def billed(self) -> int:
        """Tokens that the bill says."""
        async with self.owner.session() as session:
            query = text("SELECT sum(input_tokens + output_tokens) FROM usage_ledger")
            return int(await session.scalar(query) or 0)

    async def spent(self, subject: str) -> int:
        """Tokens by the table that is kept with the ledger."""
        async with self.owner.session() as session:
            query = text("SELECT sum(num_tokens) FROM spend WHERE subject = :subject")
            return int(await session.scalar(query, {"subject": subject}) or 0)

    async def _field(self, what: str, subject: str) -> int:
        field = f"m{datetime.now(UTC):%Y%m}"
        return int(await self.redis.hget(f"{keys.PREFIX}{what}:{subject}", field) or 0)


@pytest.fixture
async def books(database: TestDatabase, redis_url: str) -> AsyncIterator[Books]:
    owner = Database(database.owner_url, pool_size=1)
    registry = Database(database.app_url, pool_size=2)
    async with open_async_redis(redis_url, max_connections=4) as client:
        consumer = UsageConsumer(registry, client, secret=QUEUE_SECRET)
        yield Books(owner, client, consumer, Settler(registry, client))
    await registry.close()
    await owner.close()


@pytest.fixture
def engine(redis_url: str, context: AppContext) -> Iterator[StubEngine]:
    """Answers `Hello`, and the end of the turn: six tokens."""
    tokens = [*context.tokenizer.encode_prompt("Hello"), IM_END]

    def reply(request: EngineRequest) -> list[int]:
        return tokens

    with StubEngine(redis_url, reply=reply) as stub:
        yield stub


@pytest.fixture
async def acme(operator: Operator) -> Tenant:
    return await operator.new_tenant("acme", limits={"tokens_per_month": 10_000})
