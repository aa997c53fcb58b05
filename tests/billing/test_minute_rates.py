"""Rates by the minute outlive a Redis that loses its data: the ledger says what the minute had."""

from __future__ import annotations

from collections.abc import Iterator

import httpx
import pytest
import redis

from app.admission import settlement
from app.admission.messages import LatelyUsed, encode
from app.context import AppContext
from engine.transport import keys
from tests.builders.operator import Operator, Tenant
from tests.builders.stub_engine import StubEngine
from tests.builders.tiny_base import MODEL_ID
from tests.builders.waiting import eventually

BODY = {"model": MODEL_ID, "prompt": [1, 2, 3], "max_tokens": 4, "temperature": 0}


@pytest.fixture
def engine(redis_url: str) -> Iterator[StubEngine]:
    with StubEngine(redis_url) as stub:
        yield stub


@pytest.fixture
async def acme(operator: Operator) -> Tenant:
    return await operator.new_tenant("acme", limits={"requests_per_minute": 3})


async def ask(api: httpx.AsyncClient, tenant: Tenant) -> int:
    """Its status, once there is a queue again."""
    statuses: list[int] = []

    async def answered() -> bool:
        answer = await api.post("/v1/completions", json=BODY, headers=tenant.headers)
        statuses.append(answer.status_code)
        return answer.status_code != 503

    await eventually(answered, timeout_s=20)
    return statuses[-1]


def flush(redis_url: str) -> None:
    with redis.Redis.from_url(redis_url) as server:
        server.flushall()


async def test_what_a_minute_had_is_remembered_after_redis_lost_its_data(
    api: httpx.AsyncClient, acme: Tenant, engine: StubEngine, redis_url: str
) -> None:
    assert [await ask(api, acme) for _ in range(2)] == [200, 200]
    flush(redis_url)
    assert [await ask(api, acme) for _ in range(3)] == [200, 429, 429]
    with redis.Redis.from_url(redis_url) as server:
        fields = server.hgetall(f"{keys.PREFIX}window:tenant:{acme.id}")
    assert sum(int(amount) for name, amount in fields.items() if name.startswith(b"r")) == 3


async def test_control_without_the_ledger_a_lost_minute_is_a_free_one(
    api: httpx.AsyncClient,
    acme: Tenant,
    engine: StubEngine,
    redis_url: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def nothing(*_: object) -> list[LatelyUsed]:
        return []

    monkeypatch.setattr(settlement, "read_lately", nothing)
    assert [await ask(api, acme) for _ in range(2)] == [200, 200]
    flush(redis_url)
    assert [await ask(api, acme) for _ in range(4)] == [200, 200, 200, 429]


async def test_a_minute_is_filled_once_however_often_it_is_read(
    api: httpx.AsyncClient,
    acme: Tenant,
    engine: StubEngine,
    redis_url: str,
    context: AppContext,
) -> None:
    assert await ask(api, acme) == 200
    flush(redis_url)
    for _ in range(2):  # as two API processes that ask at once
        spend = await settlement.load_spend(context.database, acme.id)
        await context.admission._run("load", encode(spend))
    assert [await ask(api, acme) for _ in range(3)] == [200, 200, 429]
