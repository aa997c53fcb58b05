"""Places in flight: they hold over all API processes, and a dead process gives its places back."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import suppress

import pytest
import redis

from app.admission.service import Admission
from app.errors import ApiError, RateLimitedError, UnavailableError
from app.launcher.ports import free_port
from engine.transport import keys
from engine.transport.server import EngineTransport
from tests.builders.admissions import admit, key_limits, make_ask, nothing_spent, tenant_limits
from tests.builders.queue_driver import QueueDriver
from tests.builders.queue_secret import QUEUE_SECRET
from tests.builders.requests import make_request
from tests.builders.waiting import until

PLACES = keys.places("tenant:ten_a")


@pytest.fixture
async def admission(redis_url: str) -> AsyncIterator[Admission]:
    service = Admission(redis_url, nothing_spent)
    yield service
    await service.close()


@pytest.fixture
def driver(redis_url: str) -> QueueDriver:
    return QueueDriver(redis.Redis.from_url(redis_url, protocol=2))


async def acquire(
    admission: Admission, request_id: str, tenant_id: str = "ten_a", *, concurrency: int = 2
) -> None:
    limits = tenant_limits(tenant_id, concurrency=concurrency)
    await admit(admission, request_id, limits, tenant_id=tenant_id)


async def release(admission: Admission, request_id: str) -> None:
    await admission.release(make_ask(admission, request_id), is_accepted=False)


async def test_the_limit_is_the_last_that_is_admitted(admission: Admission) -> None:
    await acquire(admission, "r1")
    await acquire(admission, "r2")
    with pytest.raises(RateLimitedError) as refusal:
        await acquire(admission, "r3")
    assert (refusal.value.status, refusal.value.code) == (429, "rate_limit_exceeded")
    assert refusal.value.type == "concurrency"
    assert 1 <= int(refusal.value.headers["retry-after"]) <= 60
    assert "2 requests in flight: 2 used, 1 requested" in refusal.value.message


async def test_who_does_not_wait_for_the_answer_leaves_nothing_behind(
    admission: Admission, redis_url: str
) -> None:
    """Whenever a client hangs up: the place is taken and given back, or never taken."""
    with redis.Redis.from_url(redis_url) as server:
        for num_turns in range(24):
            asking = asyncio.create_task(acquire(admission, f"r{num_turns}"))
            for _ in range(num_turns):
                await asyncio.sleep(0)
            asking.cancel()
            with suppress(asyncio.CancelledError):
                await asking
            await release(admission, f"r{num_turns}")
            assert server.zcard(PLACES) == admission.num_held == 0


async def test_what_was_given_back_leaves_nothing_behind(
    admission: Admission, redis_url: str
) -> None:
    for i in range(20):
        await acquire(admission, f"r{i}", concurrency=1)
        await release(admission, f"r{i}")
    with redis.Redis.from_url(redis_url) as server:
        assert server.keys("*") == []


async def test_another_tenants_places_do_not_count(admission: Admission) -> None:
    await acquire(admission, "r1", "ten_a", concurrency=1)
    await acquire(admission, "r2", "ten_b", concurrency=1)


async def test_a_keys_places_count_besides_its_tenants(admission: Admission) -> None:
    limits = [*tenant_limits(concurrency=3), *key_limits(concurrency=1)]
    await admit(admission, "r1", limits)
    with pytest.raises(RateLimitedError) as refusal:
        await admit(admission, "r2", limits)
    assert refusal.value.details["limit"]["scope"] == "key"
    await admit(admission, "r3", tenant_limits(concurrency=3), key_id="key_b")


async def test_the_choices_of_a_request_are_admitted_together_or_not_at_all(
    admission: Admission, redis_url: str
) -> None:
    limits = tenant_limits(concurrency=4)
    await admit(admission, "r1", limits, num_choices=3)
    with pytest.raises(RateLimitedError):
        await admit(admission, "r2", limits, num_choices=2)
    with redis.Redis.from_url(redis_url) as server:
        assert server.zcard(PLACES) == 3
    await admit(admission, "r3", limits, num_choices=1)


async def test_asking_again_for_a_request_takes_no_second_place(admission: Admission) -> None:
    for _ in range(5):
        await acquire(admission, "r1")
    await acquire(admission, "r2")


async def test_two_processes_never_admit_above_the_limit_together(redis_url: str) -> None:
    processes = [Admission(redis_url, nothing_spent) for _ in range(2)]
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
    await admit(admission, "r1", tenant_limits(queue_depth=4))
    with pytest.raises(RateLimitedError) as refusal:
        await admit(admission, "r2", tenant_limits(queue_depth=3))
    assert refusal.value.code == "queue_full"
    await admit(admission, "r3", tenant_limits("ten_b", queue_depth=3), tenant_id="ten_b")


@pytest.fixture
async def processes(redis_url: str) -> AsyncIterator[list[Admission]]:
    processes = [Admission(redis_url, nothing_spent) for _ in range(2)]
    yield processes
    for process in processes:
        await process.close()


async def num_of_twenty(processes: list[Admission], tenant_id: str) -> int:
    """How many of as many requests at once are admitted to a queue of five."""
    limits = tenant_limits(tenant_id, queue_depth=5)
    outcomes = await asyncio.gather(
        *(
            admit(processes[i % 2], f"{tenant_id}-{i}", limits, tenant_id=tenant_id)
            for i in range(20)
        ),
        return_exceptions=True,
    )
    refusals = [each for each in outcomes if isinstance(each, RateLimitedError)]
    assert {each.code for each in refusals} <= {"queue_full"}
    return len(outcomes) - len(refusals)


async def test_of_twenty_at_once_on_two_processes_as_many_wait_as_the_queue_holds(
    processes: list[Admission], driver: QueueDriver, redis_url: str
) -> None:
    """All come before the first is enqueued: each would find the same queue."""
    assert await num_of_twenty(processes, "ten_a") == 5, "no engine lives"
    with redis.Redis.from_url(redis_url) as server:
        server.sadd(keys.ENGINES, "engine-0")
        server.hset(keys.engine("engine-0"), "boot", "1")
        for tenant_id in ("ten_b", "ten_c"):
            driver.enqueue(make_request(tenant_id, request_id=f"{tenant_id}-first"))
        # The control: as long as engines may have room nobody is refused for who comes with it.
        assert await num_of_twenty(processes, "ten_b") == 20
        arrived = f"{keys.PREFIX}request:ten_c-first"
        server.hincrby(arrived, "arrived_ms", -200)
    assert await num_of_twenty(processes, "ten_c") == 4, "one waits, and has for a while"


async def test_who_is_in_the_queue_is_not_on_its_way_there_any_more(
    admission: Admission, driver: QueueDriver, redis_url: str
) -> None:
    limits = tenant_limits(queue_depth=1)
    await admit(admission, "r1", limits)
    with pytest.raises(RateLimitedError):
        await admit(admission, "r2", limits)
    driver.enqueue(make_request("ten_a", request_id="r1-0"))
    with pytest.raises(RateLimitedError):
        await admit(admission, "r2", limits)
    transport = EngineTransport(redis_url, "engine-0", secret=QUEUE_SECRET)
    assert len(transport.lease(100, 1, 1)) == 1  # all that it has room for: it is not idle
    transport.close()
    await admit(admission, "r2", limits)
    with pytest.raises(RateLimitedError):
        await admit(admission, "r3", limits)
    await release(admission, "r2")  # its client went away before it was enqueued
    await admit(admission, "r3", limits)


async def test_each_choice_waits(admission: Admission) -> None:
    limits = tenant_limits(queue_depth=8)
    with pytest.raises(RateLimitedError) as refusal:
        await admit(admission, "r1", limits, num_choices=9)
    assert refusal.value.code == "queue_full"
    await admit(admission, "r2", limits, num_choices=8)
    with pytest.raises(RateLimitedError):
        await admit(admission, "r3", limits)


async def test_retry_after_is_what_the_oldest_has_waited(
    admission: Admission, driver: QueueDriver, redis_url: str
) -> None:
    driver.enqueue(make_request("ten_a", request_id="old"))
    with redis.Redis.from_url(redis_url) as server:
        server.hincrby(f"{keys.PREFIX}request:old", "arrived_ms", -6_500)
    with pytest.raises(RateLimitedError) as refusal:
        await admit(admission, "r1", tenant_limits(queue_depth=1))
    assert int(refusal.value.headers["retry-after"]) in (7, 8)
    with redis.Redis.from_url(redis_url) as server:
        server.hincrby(f"{keys.PREFIX}request:old", "arrived_ms", -3_600_000)
    with pytest.raises(RateLimitedError) as refusal:
        await admit(admission, "r2", tenant_limits(queue_depth=1))
    error = refusal.value  # still of the queue, and not of the end of some day
    assert (error.code, error.headers["retry-after"]) == ("queue_full", "60")
    assert "x-should-retry" not in error.headers


async def test_a_queue_for_nobody_is_not_worth_a_retry(admission: Admission) -> None:
    with pytest.raises(ApiError) as refusal:
        await admit(admission, "r1", tenant_limits(queue_depth=0))
    assert refusal.value.code == "request_exceeds_limit"
    assert refusal.value.headers["x-should-retry"] == "false"


async def test_a_dead_process_gives_its_places_back(redis_url: str, admission: Admission) -> None:
    dying = Admission(redis_url, nothing_spent, lease_s=0.4)
    await admit(dying, "r1", tenant_limits(concurrency=1, queue_depth=1))
    await dying.close()  # without a release, as when it is killed
    with pytest.raises(RateLimitedError):
        await acquire(admission, "r2", concurrency=1)
    with redis.Redis.from_url(redis_url) as server:
        await until(lambda: not server.exists(PLACES), timeout_s=5)
        assert not server.exists(f"{keys.PREFIX}entering:tenant:ten_a")
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
    admission = SwallowsCancellation(redis_url, nothing_spent, lease_s=0.03)
    await acquire(admission, "r1")
    await until(lambda: admission.has_begun)
    async with asyncio.timeout(5):
        await admission.close()


async def test_a_living_process_keeps_its_places(redis_url: str, admission: Admission) -> None:
    """The control of the test above: time alone frees nothing."""
    living = Admission(redis_url, nothing_spent, lease_s=0.4)
    await acquire(living, "r1", concurrency=1)
    await asyncio.sleep(1.0)
    with pytest.raises(RateLimitedError):
        await acquire(admission, "r2", concurrency=1)
    await living.close()


async def test_a_redis_that_lost_its_data_hears_of_places_and_reservations_again(
    redis_url: str, admission: Admission
) -> None:
    living = Admission(redis_url, nothing_spent, lease_s=0.4)
    await acquire(living, "r1", concurrency=1)
    with redis.Redis.from_url(redis_url) as server:
        before = server.hgetall(f"{keys.PREFIX}reserved:tenant:ten_a")
        assert before
        server.flushall()
        await until(lambda: bool(server.exists(PLACES)), timeout_s=5)
        assert server.hgetall(f"{keys.PREFIX}reserved:tenant:ten_a") == before
    with pytest.raises(RateLimitedError):
        await acquire(admission, "r2", concurrency=1)
    await living.close()


async def test_without_redis_the_answer_is_unavailable_and_releasing_is_safe() -> None:
    admission = Admission(f"redis://127.0.0.1:{free_port()}/0", nothing_spent)
    with pytest.raises(UnavailableError) as refusal:
        await acquire(admission, "r1")
    assert refusal.value.status == 503
    await release(admission, "r1")
    await admission.close()
