"""Who goes first, and for how long: weights, service tiers, deadlines, and adapters at hand."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec
import pytest
import redis

from engine.messages import AdapterRef, EngineRequest, ServiceTier, Wake
from engine.transport import keys
from engine.transport.client import QueueClient
from engine.transport.lease_rules import LeaseRules
from engine.transport.server import EngineStatus, EngineTransport
from tests.builders.queue_driver import QueueDriver
from tests.builders.queue_secret import QUEUE_SECRET
from tests.builders.requests import make_request

PAGE_TOKENS = 16
PLENTY = 1000
RULES = LeaseRules(affinity_wait_s=60.0, max_age_s=60.0)  # but where a test is about time


@pytest.fixture
def engine(redis_url: str) -> Iterator[EngineTransport]:
    """Asks by `RULES`."""
    transport = EngineTransport(redis_url, "engine-0", secret=QUEUE_SECRET, rules=RULES)
    yield transport
    transport.close()


def adapter(name: str) -> AdapterRef:
    return AdapterRef(tenant_id=f"ten_{name}", digest=f"sha256:{name:>064}", locator=name)


def asked(
    name: str, tenant_id: str = "ten_a", tier: ServiceTier = ServiceTier.DEFAULT, **more: object
) -> EngineRequest:
    request = make_request(tenant_id, request_id=name, prompt=range(10))
    return msgspec.structs.replace(request, service_tier=tier, **more)


def lease(transport: EngineTransport, n: int = 1, free_pages: int = PLENTY) -> list[str]:
    return [each.request_id for each in transport.lease(free_pages, PAGE_TOKENS, n)]


def age(server: redis.Redis, request_id: str, field: str, seconds: float) -> None:
    server.hincrby(f"{keys.PREFIX}request:{request_id}", field, -int(seconds * 1000))


def counter(server: redis.Redis, tenant_id: str) -> float:
    return float(server.hget(f"{keys.PREFIX}vtc", tenant_id) or 0)


# Weights


@pytest.mark.parametrize(("weight", "share"), [(1.0, 10), (3.0, 15), (0.25, 4)])
def test_service_is_in_proportion_to_weight(
    driver: QueueDriver, transport: EngineTransport, weight: float, share: int
) -> None:
    for i in range(20):
        driver.enqueue(asked(f"a{i}", weight=weight))
        driver.enqueue(asked(f"b{i}", "ten_b"))
    of_a = sum(name.startswith("a") for name in lease(transport, n=20))
    assert abs(of_a - share) <= 1


def test_generated_tokens_are_charged_over_the_weight_too(
    driver: QueueDriver, transport: EngineTransport, server: redis.Redis
) -> None:
    driver.enqueue(asked("a", weight=100.0))
    lease(transport)
    for _ in range(100):
        transport.heartbeat(EngineStatus(generated_tokens={"ten_a": 1}))
    assert counter(server, "ten_a") == pytest.approx(10 / 100 + 2 * 100 / 100)


def test_a_weight_holds_from_the_next_request_on(
    driver: QueueDriver, transport: EngineTransport, server: redis.Redis
) -> None:
    driver.enqueue(asked("a1", weight=2.0))
    driver.enqueue(asked("a2", weight=1.0))
    lease(transport)
    assert counter(server, "ten_a") == 10
    assert not server.exists(f"{keys.PREFIX}weights")


# Service tiers


def test_within_a_tenant_priority_goes_first_and_flex_last(
    driver: QueueDriver, transport: EngineTransport
) -> None:
    for name, tier in (("f", "flex"), ("d", "default"), ("p", "priority"), ("p2", "priority")):
        driver.enqueue(asked(name, tier=ServiceTier(tier)))
    assert lease(transport, n=4) == ["p", "p2", "d", "f"]


def test_flex_yields_to_the_default_of_others_however_much_those_have_had(
    driver: QueueDriver, transport: EngineTransport, server: redis.Redis
) -> None:
    transport.heartbeat(EngineStatus(generated_tokens={"ten_b": 10**6}))
    driver.enqueue(asked("f", tier=ServiceTier.FLEX))
    driver.enqueue(asked("d", "ten_b"))
    assert lease(transport, n=2) == ["d", "f"]


def test_flex_is_served_where_no_default_request_fits(
    driver: QueueDriver, transport: EngineTransport
) -> None:
    driver.enqueue(make_request("ten_b", request_id="big", prompt=range(100)))
    driver.enqueue(asked("f", tier=ServiceTier.FLEX))
    assert lease(transport, n=2, free_pages=2) == ["f"]


def test_many_tenants_flex_requests_hide_no_default_one(
    driver: QueueDriver, transport: EngineTransport
) -> None:
    for i in range(40):
        driver.enqueue(asked(f"f{i}", f"ten_{i}", ServiceTier.FLEX))
    driver.enqueue(asked("d", "ten_z"))
    assert lease(transport) == ["d"]


def test_flex_that_waited_for_long_yields_no_more(
    driver: QueueDriver, transport: EngineTransport, server: redis.Redis
) -> None:
    driver.enqueue(asked("old", tier=ServiceTier.FLEX))
    driver.enqueue(asked("young", tier=ServiceTier.FLEX))
    driver.enqueue(asked("d1"))
    driver.enqueue(asked("d2", "ten_b"))
    server.zincrby(f"{keys.PREFIX}flex", -1000 * LeaseRules().flex_wait_s, "old")
    order = lease(transport, n=4)
    assert order.index("old") < order.index("d1")  # it came before
    assert order[-1] == "young"
    assert not server.exists(f"{keys.PREFIX}flex", f"{keys.PREFIX}tenants_flex")


def test_who_sends_flex_beside_default_loses_no_turn_by_it(
    driver: QueueDriver, transport: EngineTransport, server: redis.Redis
) -> None:
    """The flex of somebody who has had much must not lift the tenant that joins it there."""
    transport.heartbeat(EngineStatus(generated_tokens={"ten_b": 10**6}))
    driver.enqueue(asked("b", "ten_b", ServiceTier.FLEX))
    driver.enqueue(asked("a"))
    before = counter(server, "ten_a")
    driver.enqueue(asked("a2", tier=ServiceTier.FLEX))
    assert counter(server, "ten_a") == before


def test_flex_that_has_begun_goes_on_as_any_other(
    driver: QueueDriver, transport: EngineTransport
) -> None:
    """Its engine died, and a client reads along."""
    driver.enqueue(asked("d"))
    driver.requeue(asked("begun", tier=ServiceTier.FLEX, epoch=1), is_forced=True)
    driver.enqueue(asked("d2"))
    assert lease(transport, n=3) == ["d", "begun", "d2"]


def test_flex_that_has_begun_yields_as_before_where_nobody_reads_along(
    driver: QueueDriver, transport: EngineTransport
) -> None:
    """A batch's line: its engine died, or the worker that ran it."""
    begun = asked("begun", tier=ServiceTier.FLEX, epoch=1)
    driver.requeue(begun, is_forced=True, keeps_tier=True)
    driver.enqueue(asked("again", tier=ServiceTier.FLEX, epoch=50_000))
    driver.enqueue(asked("d"))
    assert lease(transport, n=3) == ["d", "begun", "again"]


def test_priority_goes_before_other_tenants_within_its_slack(
    driver: QueueDriver, transport: EngineTransport
) -> None:
    slack = LeaseRules().priority_slack_tokens
    driver.enqueue(asked("d", "ten_b"))
    transport.heartbeat(EngineStatus(generated_tokens={"ten_a": (slack - 20) // 2}))
    for i in range(8):
        driver.enqueue(asked(f"p{i}", tier=ServiceTier.PRIORITY))
        driver.enqueue(asked(f"d{i}", "ten_b"))
    # From then on its tenant is so far ahead that others have every second turn.
    assert lease(transport, n=8) == ["p0", "p1", "p2", "d", "p3", "d0", "p4", "d1"]


# Deadlines


def test_an_expired_request_is_never_leased(
    driver: QueueDriver, transport: EngineTransport, server: redis.Redis
) -> None:
    for i in range(20):
        driver.enqueue(asked(f"late{i}"), timeout_s=60)
        age(server, f"late{i}", "deadline_ms", 61)
    driver.enqueue(asked("in_time"), timeout_s=60)
    assert lease(transport, n=30) == ["in_time"]
    assert driver.states("late0", "late19", "in_time") == "xxl"
    assert not server.exists(f"{keys.PREFIX}queue:ten_a")
    assert 0 < server.pttl(f"{keys.PREFIX}request:late0") <= 60_000


def test_without_a_deadline_nothing_expires(
    driver: QueueDriver, transport: EngineTransport, server: redis.Redis
) -> None:
    driver.enqueue(asked("patient"))
    age(server, "patient", "arrived_ms", 10**6)
    assert lease(transport) == ["patient"]


async def test_a_client_hears_of_an_expired_request_though_its_own_clock_says_otherwise(
    client: QueueClient, transport: EngineTransport, server: redis.Redis
) -> None:
    stream = await client.submit(asked("late"), queue_timeout_s=60)
    age(server, "late", "deadline_ms", 61)
    assert lease(transport) == []
    outputs = [output async for output in stream]
    assert outputs[-1].error is not None and outputs[-1].error.code == "queue_timeout"


# Affinity


def test_an_engine_prefers_what_it_has_the_adapter_for(
    driver: QueueDriver, engine: EngineTransport
) -> None:
    engine.update_resident([adapter("b")])
    driver.enqueue(asked("a", adapter=adapter("a")))
    driver.enqueue(asked("b", "ten_b", adapter=adapter("b")))
    driver.enqueue(asked("c", "ten_c", adapter=adapter("c")))
    assert lease(engine, n=3) == ["b", "a", "c"]


def test_an_engine_without_it_takes_it_all_the_same(
    driver: QueueDriver, engine: EngineTransport
) -> None:
    driver.enqueue(asked("a", adapter=adapter("a")))
    assert lease(engine) == ["a"]


def test_the_base_is_at_hand_everywhere(driver: QueueDriver, engine: EngineTransport) -> None:
    driver.enqueue(asked("a", adapter=adapter("a")))
    driver.enqueue(asked("base", "ten_b"))
    assert lease(engine, n=2) == ["base", "a"]


def test_affinity_goes_no_further_than_its_slack(
    driver: QueueDriver, engine: EngineTransport
) -> None:
    engine.update_resident([adapter("b")])
    driver.enqueue(asked("a", adapter=adapter("a")))
    engine.heartbeat(EngineStatus(generated_tokens={"ten_b": RULES.affinity_slack_tokens // 2}))
    driver.enqueue(asked("b1", "ten_b", adapter=adapter("b")))
    driver.enqueue(asked("b2", "ten_b", adapter=adapter("b")))
    assert lease(engine) == ["b1"]  # exactly at the slack
    assert lease(engine) == ["a"]


def test_nobody_is_passed_for_affinity_for_longer_than_its_time(
    driver: QueueDriver, redis_url: str, server: redis.Redis
) -> None:
    rules = LeaseRules(max_age_s=60.0)
    engine = EngineTransport(redis_url, "engine-0", secret=QUEUE_SECRET, rules=rules)
    engine.update_resident([adapter("b")])
    driver.enqueue(asked("a", adapter=adapter("a")))
    for i in range(3):
        driver.enqueue(asked(f"b{i}", "ten_b", adapter=adapter("b")))
    assert lease(engine) == ["b0"]
    age(server, "a", "passed_ms", rules.affinity_wait_s)
    assert lease(engine) == ["a"]
    engine.close()


def test_the_order_is_strict_past_the_age(
    driver: QueueDriver, redis_url: str, server: redis.Redis
) -> None:
    rules = LeaseRules(affinity_wait_s=60.0)
    engine = EngineTransport(redis_url, "engine-0", secret=QUEUE_SECRET, rules=rules)
    engine.update_resident([adapter("b")])
    driver.enqueue(asked("a", adapter=adapter("a")))
    driver.enqueue(asked("b", "ten_b", adapter=adapter("b")))
    age(server, "a", "arrived_ms", rules.max_age_s)
    assert lease(engine) == ["a"]
    engine.close()


def test_affinity_does_not_reverse_tiers(driver: QueueDriver, engine: EngineTransport) -> None:
    engine.update_resident([adapter("b")])
    driver.enqueue(asked("b", "ten_b", adapter=adapter("b")))
    driver.enqueue(asked("p", "ten_a", ServiceTier.PRIORITY, adapter=adapter("a")))
    assert lease(engine) == ["p"]


def test_of_idle_engines_one_with_the_adapter_is_woken(driver: QueueDriver, redis_url: str) -> None:
    roomy, holder = (
        EngineTransport(redis_url, name, secret=QUEUE_SECRET) for name in ("roomy", "holder")
    )
    holder.update_resident([adapter("a")])
    assert lease(roomy, free_pages=100) == lease(holder, free_pages=10) == []
    driver.enqueue(asked("a", adapter=adapter("a")))
    assert (holder.wait_control(0), roomy.wait_control(0)) == ([Wake()], [])
    assert lease(holder, free_pages=1) == ["a"]
    # Without room for the prompt the adapter is no reason.
    assert lease(holder, free_pages=0) == []
    driver.enqueue(asked("a2", adapter=adapter("a")))
    assert (holder.wait_control(0), roomy.wait_control(0)) == ([], [Wake()])
    roomy.close()
    holder.close()


# What the door is told


def test_the_count_of_what_waits_is_right_after_every_way_out(
    driver: QueueDriver, transport: EngineTransport, server: redis.Redis
) -> None:
    for i in range(5):
        driver.enqueue(asked(f"r{i}", tier=list(ServiceTier)[i % 3]), timeout_s=60)
    assert int(server.get(f"{keys.PREFIX}num_queued") or 0) == 5
    age(server, "r0", "deadline_ms", 61)
    driver.abort("r1")
    server.delete(f"{keys.PREFIX}request:r2")
    assert len(lease(transport, n=5)) == 2
    assert not server.exists(f"{keys.PREFIX}num_queued")


async def test_the_pace_is_what_engines_take_while_there_is_a_queue(
    client: QueueClient, driver: QueueDriver, transport: EngineTransport, server: redis.Redis
) -> None:
    for i in range(40):
        driver.enqueue(asked(f"r{i}", f"ten_{i % 2}"))
    assert (await client.load("ten_0")).requests_per_s is None
    lease(transport, n=10)
    server.hincrby(f"{keys.PREFIX}service", "since_ms", -1000)
    lease(transport, n=10)
    load = await client.load("ten_0")
    assert (load.num_queued, load.num_tenants, load.num_own) == (20, 2, 10)
    assert load.requests_per_s == pytest.approx(20, rel=0.1)
