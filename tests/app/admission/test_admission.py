"""A tenant's limits hold over all API processes, and a dead process gives its places back."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import suppress

import pytest
import redis

from app.admission import Admission
from app.errors import RateLimitedError, UnavailableError
from app.launcher.ports import free_port
from engine.transport import keys
from tests.builders.queue_driver import QueueDriver
from tests.builders.requests import make_request
from tests.builders.waiting import until

PLENTY = 1000


@pytest.fixture
async def admission(redis_url: str) -> AsyncIterator[Admission]:
    service = Admission(redis_url)
    yield service
    await service.close()


@pytest.fixture
def driver(redis_url: str) -> QueueDriver:
    return QueueDriver(redis.Redis.from_url(redis_url, protocol=2))


async def acquire(
    admission: Admission,
    request_id: str,
    tenant_id: str = "ten_a",
    *,
    concurrency: int = 2,
    depth: int = PLENTY,
) -> None:
    await admission.acquire(
        tenant_id, request_id, concurrency_limit=concurrency, queue_depth_limit=depth
    )


async def test_the_limit_is_the_last_that_is_admitted(admission: Admission) -> None:
    await acquire(admission, "r1")
    await acquire(admission, "r2")
    with pytest.raises(RateLimitedError) as refusal:
        await acquire(admission, "r3")
    assert (refusal.value.status, refusal.value.code) == (429, "rate_limit_exceeded")
    assert refusal.value.type == "concurrency"
    assert 1 <= int(refusal.value.headers["retry-after"]) <= 60
    assert "2 requests" in refusal.value.message


async def test_a_released_place_is_free(admission: Admission, redis_url: str) -> None:
    for i in range(20):
        await acquire(admission, f"r{i}", concurrency=1)
        await admission.release("ten_a", f"r{i}")
    with redis.Redis.from_url(redis_url) as server:
        assert server.keys("*") == []


async def test_another_tenants_places_do_not_count(admission: Admission) -> None:
    await acquire(admission, "r1", "ten_a", concurrency=1)
    await acquire(admission, "r2", "ten_b", concurrency=1)


async def test_asking_again_for_a_request_takes_no_second_place(admission: Admission) -> None:
    for _ in range(5):
        await acquire(admission, "r1")
    await acquire(admission, "r2")


async def test_two_processes_never_admit_above_the_limit_together(redis_url: str) -> None:
    processes = [Admission(redis_url) for _ in range(2)]
    outcomes = await asyncio.gather(
        *(acquire(processes[i % 2], f"r{i}", concurrency=7) for i in range(60)),
        return_exceptions=True,
    )
    assert sum(outcome is None for outcome in outcomes) == 7
    assert all(outcome is None or isinstance(outcome, RateLimitedError) for outcome in outcomes)
    assert sum(process.num_held for process in processes) == 7
    for process in processes:
        await process.close()


async def test_a_full_queue_is_refused_by_name(admission: Admission, driver: QueueDriver) -> None:
    for _ in range(3):
        driver.enqueue(make_request("ten_a"))
    await acquire(admission, "r1", depth=4)
    with pytest.raises(RateLimitedError) as refusal:
        await acquire(admission, "r2", depth=3)
    assert refusal.value.code == "queue_full"
    await acquire(admission, "r3", "ten_b", depth=3)


async def test_retry_after_is_what_the_oldest_has_waited(
    admission: Admission, driver: QueueDriver, redis_url: str
) -> None:
    driver.enqueue(make_request("ten_a", request_id="old"))
    with redis.Redis.from_url(redis_url) as server:
        server.hincrby(f"{keys.PREFIX}request:old", "arrived_ms", -6_500)
    with pytest.raises(RateLimitedError) as refusal:
        await acquire(admission, "r1", depth=1)
    assert int(refusal.value.headers["retry-after"]) in (7, 8)


async def test_a_dead_process_gives_its_places_back(redis_url: str, admission: Admission) -> None:
    dying = Admission(redis_url, lease_s=0.4)
    await acquire(dying, "r1", concurrency=1)
    await dying.close()  # without a release, as when it is killed
    with pytest.raises(RateLimitedError):
        await acquire(admission, "r2", concurrency=1)
    with redis.Redis.from_url(redis_url) as server:
        await until(lambda: not server.exists(keys.admission("ten_a")), timeout_s=5)
    await acquire(admission, "r2", concurrency=1)


class SwallowsCancellation(Admission):
    """Refreshes for ever, and loses the first cancellation, as redis-py now and then does."""

    has_begun = False

    async def refresh(self) -> None:
        lost = (asyncio.CancelledError,) if not self.has_begun else ()
        self.has_begun = True
        with suppress(*lost):
            await asyncio.Event().wait()


async def test_closing_ends_though_a_cancellation_is_lost(redis_url: str) -> None:
    admission = SwallowsCancellation(redis_url, lease_s=0.03)
    await acquire(admission, "r1")
    await until(lambda: admission.has_begun)
    async with asyncio.timeout(5):
        await admission.close()


async def test_a_living_process_keeps_its_places(redis_url: str, admission: Admission) -> None:
    """The control of the test above: time alone frees nothing."""
    living = Admission(redis_url, lease_s=0.4)
    await acquire(living, "r1", concurrency=1)
    await asyncio.sleep(1.0)
    with pytest.raises(RateLimitedError):
        await acquire(admission, "r2", concurrency=1)
    await living.close()


async def test_a_redis_that_lost_its_data_hears_of_the_places_again(
    redis_url: str, admission: Admission
) -> None:
    living = Admission(redis_url, lease_s=0.4)
    await acquire(living, "r1", concurrency=1)
    with redis.Redis.from_url(redis_url) as server:
        server.flushall()
        await until(lambda: bool(server.exists(keys.admission("ten_a"))), timeout_s=5)
    with pytest.raises(RateLimitedError):
        await acquire(admission, "r2", concurrency=1)
    await living.close()


async def test_without_redis_the_answer_is_unavailable_and_releasing_is_safe() -> None:
    admission = Admission(f"redis://127.0.0.1:{free_port()}/0")
    with pytest.raises(UnavailableError) as refusal:
        await acquire(admission, "r1")
    assert refusal.value.status == 503
    await admission.release("ten_a", "r1")
    await admission.close()
