"""Service tiers, deadlines and the door, as a client meets them."""

from __future__ import annotations

from typing import Any

import httpx
import pytest
import redis

from app.context import AppContext
from engine.messages import ServiceTier
from engine.transport import keys
from tests.app.completions.test_chat_route import PATH, body, post
from tests.builders.operator import Operator, Tenant
from tests.builders.queue_driver import QueueDriver
from tests.builders.requests import make_request
from tests.builders.stub_engine import StubEngine
from tests.builders.waiting import until

NUM_QUEUED = 20


@pytest.fixture
async def vip(operator: Operator) -> Tenant:
    """A tenant of a plan with priority, and with three times the weight."""
    await operator.done(
        "POST", "/plans", json={"name": "vip", "weight": 3, "allows_priority": True}
    )
    tenant = await operator.new_tenant("vip")
    await operator.done("PUT", "/tenants/vip/plan", json={"plan": "vip"})
    return tenant


@pytest.fixture
def server(redis_url: str) -> redis.Redis:
    return redis.Redis.from_url(redis_url, protocol=2)


@pytest.fixture
async def crowd(context: AppContext, server: redis.Redis) -> None:
    """One other tenant's queue, that takes twenty seconds to serve; and the API has seen it."""
    driver = QueueDriver(server)
    for _ in range(NUM_QUEUED):
        driver.enqueue(make_request("ten_crowd", api_id="api-of-others"))
    server.hset(f"{keys.PREFIX}service", "rate", 1)
    await until(lambda: context.queue.num_queued == NUM_QUEUED)


@pytest.mark.parametrize(
    ("asked", "used"),
    [
        (None, "default"),
        ("auto", "default"),
        ("default", "default"),
        ("scale", "default"),
        ("flex", "flex"),
        ("priority", "priority"),
        ("fast", "priority"),
    ],
)
async def test_the_tier_that_is_used_reaches_the_engine_and_is_answered(
    api: httpx.AsyncClient, vip: Tenant, engine: StubEngine, asked: str | None, used: str
) -> None:
    response = await post(api, vip, body(service_tier=asked))
    assert response.json()["service_tier"] == response.headers["x-service-tier"] == used
    assert engine.requests[-1].service_tier is ServiceTier(used)
    assert engine.requests[-1].weight == 3


async def test_a_streams_chunks_say_it_too(
    api: httpx.AsyncClient, acme: Tenant, engine: StubEngine
) -> None:
    response = await post(api, acme, body(service_tier="flex", stream=True))
    assert response.text.count('"service_tier":"flex"') == response.text.count("data: {")


@pytest.mark.parametrize("tier", ["priority", "fast"])
async def test_priority_without_a_plan_for_it_is_refused_by_name(
    api: httpx.AsyncClient, acme: Tenant, engine: StubEngine, tier: str
) -> None:
    response = await post(api, acme, body(service_tier=tier))
    error = response.json()["error"]
    assert (response.status_code, error["code"]) == (400, "service_tier_not_allowed")
    assert error["param"] == "service_tier"
    assert engine.requests == []


async def test_a_request_waits_no_longer_than_it_says(api: httpx.AsyncClient, acme: Tenant) -> None:
    response = await post(api, acme, body(queue_timeout=0.3))
    assert (response.status_code, response.json()["error"]["code"]) == (408, "queue_timeout")
    assert response.elapsed.total_seconds() < 2


@pytest.mark.parametrize("seconds", [0, -1, "1", 601.0, True])
async def test_a_time_out_out_of_bounds_is_refused_by_name(
    api: httpx.AsyncClient, acme: Tenant, seconds: Any
) -> None:
    response = await post(api, acme, body(queue_timeout=seconds))
    assert response.status_code == 400
    assert response.json()["error"]["param"] == "queue_timeout"


async def test_who_would_wait_for_too_long_is_refused_at_once(
    api: httpx.AsyncClient, acme: Tenant, crowd: None, server: redis.Redis
) -> None:
    """Flex would wait for all of the crowd; its own time-out is the limit."""
    response = await post(api, acme, body(service_tier="flex", queue_timeout=10))
    assert (response.status_code, response.json()["error"]["code"]) == (503, "overloaded")
    assert response.headers["retry-after"] == str(NUM_QUEUED)
    assert int(server.get(f"{keys.PREFIX}num_queued") or 0) == NUM_QUEUED


async def test_a_tenant_is_let_in_whatever_another_one_has_queued(
    api: httpx.AsyncClient, acme: Tenant, crowd: None, engine: StubEngine
) -> None:
    """The control: the same crowd, and a request whose turn comes soon."""
    assert (await post(api, acme, body(queue_timeout=10))).status_code == 200


async def test_nobody_is_let_in_where_the_queue_is_full(
    api: httpx.AsyncClient, acme: Tenant, crowd: None, context: AppContext, server: redis.Redis
) -> None:
    server.set(f"{keys.PREFIX}num_queued", context.settings.max_queued_requests)
    response = await api.post(PATH, json=body(), headers=acme.headers)
    assert (response.status_code, response.json()["error"]["code"]) == (503, "overloaded")
