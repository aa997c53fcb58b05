"""What an engine leaves behind that is dead, came back, or said goodbye."""

from __future__ import annotations

import msgspec
import redis

from engine.transport import keys
from engine.transport.server import EngineStatus, EngineTransport
from tests.builders.queue_driver import QueueDriver
from tests.builders.queue_secret import QUEUE_SECRET
from tests.builders.requests import make_request
from tests.builders.waiting import wait_until
from tests.engine.transport.test_queue import ADAPTER, LEFT_FOR_GOOD, lease


def test_aborting_at_a_dead_engine_forgets_the_request(
    driver: QueueDriver, transport: EngineTransport, server: redis.Redis
) -> None:
    request = make_request()
    driver.enqueue(request)
    lease(transport)
    server.delete(f"{keys.PREFIX}engine:engine-0")
    assert driver.states(request.request_id) == "d"
    assert driver.abort(request.request_id) == "lost"
    assert server.hlen(keys.LEASES) == 0
    assert driver.abort(request.request_id) == "unknown"


def test_a_restarted_engine_does_not_own_its_old_leases(
    driver: QueueDriver, transport: EngineTransport, redis_url: str
) -> None:
    request = make_request()
    driver.enqueue(request)
    lease(transport)
    assert driver.states(request.request_id) == "l"
    reborn = EngineTransport(redis_url, transport.engine_id, secret=QUEUE_SECRET)
    reborn.heartbeat(EngineStatus())
    assert driver.states(request.request_id) == "d"
    assert lease(reborn) == []
    reborn.close()


def test_a_silent_engine_is_dead_after_a_second(
    driver: QueueDriver, transport: EngineTransport, server: redis.Redis
) -> None:
    request = make_request()
    driver.enqueue(request)
    lease(transport)
    ttl_ms = server.pttl(f"{keys.PREFIX}engine:engine-0")
    assert 0 < ttl_ms <= 1000
    wait_until(lambda: driver.states(request.request_id) == "d", timeout_s=5)


def test_a_reaped_engine_leaves_nothing(
    driver: QueueDriver, transport: EngineTransport, server: redis.Redis
) -> None:
    driver.enqueue(make_request())
    lease(transport)
    transport.update_resident([ADAPTER])
    assert driver.reap("engine-0") == -1  # it lives
    server.delete(f"{keys.PREFIX}engine:engine-0")
    assert driver.reap("engine-0") == 1
    assert set(server.keys("*")) <= LEFT_FOR_GOOD


def test_what_an_engine_leaves_that_says_goodbye_is_taken_back_or_expires(
    driver: QueueDriver, transport: EngineTransport, server: redis.Redis
) -> None:
    """Where its API process takes it back it lasts; where that one is gone too it does not."""
    taken_back = make_request(request_id="taken-back")
    driver.enqueue(taken_back)
    driver.enqueue(make_request(request_id="left"))
    assert len(lease(transport, n=2)) == 2
    bodies = [f"{keys.PREFIX}request:{name}" for name in ("taken-back", "left")]
    assert [server.pttl(each) for each in bodies] == [-1, -1]
    transport.say_goodbye()
    assert all(0 < server.pttl(each) <= 600_000 for each in bodies)

    assert driver.requeue(msgspec.structs.replace(taken_back, epoch=1)) == "queued"
    assert server.pttl(bodies[0]) == -1
    server.delete(bodies[1])  # its time is over
    assert driver.reap("engine-1") == 0
    assert server.hgetall(keys.LEASES) == {}
