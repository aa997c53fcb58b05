"""A place in flight is kept by the engine that runs the request, and free when nobody does."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
import redis

from app.admission.service import Admission
from engine.transport import keys, server
from engine.transport.server import EngineStatus, EngineTransport
from tests.builders.admissions import admit, make_ask, nothing_spent, tenant_limits
from tests.builders.queue_driver import QueueDriver
from tests.builders.queue_secret import QUEUE_SECRET
from tests.builders.requests import make_request
from tests.builders.waiting import until

PLACES = keys.places("tenant:ten_a")
LEASE_S = 0.5


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "PLACE_TTL_S", LEASE_S)
    monkeypatch.setattr(server, "PLACE_INTERVAL_S", 0.0)


@pytest.fixture
async def admission(redis_url: str) -> AsyncIterator[Admission]:
    """Of an API process that dies at once: it refreshes nothing."""
    process = Admission(redis_url, nothing_spent, lease_s=LEASE_S)
    yield process
    await process.close()


@pytest.fixture
async def engine(redis_url: str, admission: Admission) -> AsyncIterator[EngineTransport]:
    """One that has leased the request which took the place, from a process that has died."""
    await admit(admission, "r1", tenant_limits(concurrency=1))
    await admission.close()
    with redis.Redis.from_url(redis_url, protocol=2) as client:
        QueueDriver(client).enqueue(make_request("ten_a", request_id="r1-0"))
    transport = EngineTransport(redis_url, "engine-0", secret=QUEUE_SECRET)
    assert [each.request_id for each in transport.lease(100, 1, 1)] == ["r1-0"]
    yield transport
    transport.close()


def num_places(redis_url: str) -> int:
    with redis.Redis.from_url(redis_url) as client:
        seconds, micros = client.time()
        return int(client.zcount(PLACES, seconds * 1000 + micros // 1000, "+inf"))


async def test_an_engine_keeps_the_place_of_what_it_runs_though_the_api_process_died(
    redis_url: str, engine: EngineTransport
) -> None:
    beats = 0

    def beat() -> bool:
        nonlocal beats
        beats += 1
        engine.heartbeat(EngineStatus())
        assert num_places(redis_url) == 1
        return beats > 100  # of 10 ms: two leases

    await until(beat)


async def test_control_a_place_that_nobody_keeps_is_free_after_a_lease(
    redis_url: str, engine: EngineTransport
) -> None:
    await until(lambda: num_places(redis_url) == 0, timeout_s=4 * LEASE_S)


async def test_a_dead_engines_places_are_free_after_a_lease(
    redis_url: str, engine: EngineTransport
) -> None:
    engine.heartbeat(EngineStatus())
    assert num_places(redis_url) == 1
    await until(lambda: num_places(redis_url) == 0, timeout_s=4 * LEASE_S)


async def test_a_place_that_was_given_back_is_not_taken_again_by_the_engine(
    redis_url: str, engine: EngineTransport
) -> None:
    other = Admission(redis_url, nothing_spent)
    await other.release(make_ask(other, "r1"), is_accepted=True)
    await other.close()
    engine.heartbeat(EngineStatus())
    assert num_places(redis_url) == 0


async def test_an_api_process_leaves_to_the_engine_what_that_keeps_and_keeps_the_rest(
    redis_url: str,
) -> None:
    living = Admission(redis_url, nothing_spent, lease_s=30)
    for name in ("runs", "waits"):
        await admit(living, name, tenant_limits(concurrency=2))
    with redis.Redis.from_url(redis_url) as client:
        now = client.time()[0] * 1000
        client.zadd(PLACES, {"runs-0": now + 28_000, "waits-0": now + 10_000})
        await living.refresh()
        runs, waits = client.zmscore(PLACES, ["runs-0", "waits-0"])
    await living.close()
    assert runs == now + 28_000 and waits > now + 29_000
