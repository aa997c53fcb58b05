"""The queue's rules, one by one, on a real server: who is served, what fits, what is forgotten."""

from __future__ import annotations

import msgspec
import redis

from engine.messages import (
    Abort,
    AdapterRef,
    EngineRequest,
    FinishReason,
    OutputBatch,
    TokenOutput,
    Wake,
)
from engine.transport import keys
from engine.transport.codec import Codec
from engine.transport.server import EngineStatus, EngineTransport
from tests.builders.queue_driver import QueueDriver
from tests.builders.queue_secret import QUEUE_SECRET
from tests.builders.requests import make_request

ADAPTER = AdapterRef(tenant_id="ten_a", digest="sha256:" + "0" * 64, locator="ten_a/" + "0" * 64)
PAGE_TOKENS = 16
PLENTY = 1000
LEFT_FOR_GOOD = {
    f"{keys.PREFIX}{name}" for name in ("vtc", "level", "arrivals", "service", "served")
}


def lease(transport: EngineTransport, n: int = 1, free_pages: int = PLENTY) -> list[EngineRequest]:
    return transport.lease(free_pages, PAGE_TOKENS, n)


def ids(requests: list[EngineRequest]) -> list[str]:
    return [request.request_id for request in requests]


def counters(server: redis.Redis) -> dict[str, int]:
    return {str(tenant): int(n) for tenant, n in server.hgetall(f"{keys.PREFIX}vtc").items()}


def finish(transport: EngineTransport, request: EngineRequest, *, epoch: int | None = None) -> None:
    output = TokenOutput(
        request_id=request.request_id,
        epoch=request.epoch if epoch is None else epoch,
        index=0,
        token_ids=[1],
        num_prompt_tokens=len(request.prompt_token_ids),
        num_generated_tokens=1,
        finish_reason=FinishReason.STOP,
    )
    batch = OutputBatch(engine_id=transport.engine_id, outputs=[output])
    assert transport.publish({request.api_id: batch})


def test_an_engine_gets_the_request_that_was_submitted(
    driver: QueueDriver, transport: EngineTransport
) -> None:
    request = make_request(adapter=ADAPTER, stop_token_ids=(2,))
    driver.enqueue(request)
    [leased] = lease(transport)
    assert leased.epoch == 1
    assert msgspec.structs.replace(leased, epoch=0, queue_ms=0) == request


def test_a_tenants_requests_come_in_order_of_arrival(
    driver: QueueDriver, transport: EngineTransport
) -> None:
    requests = [make_request(request_id=f"req_{i}") for i in (3, 1, 2)]
    for request in requests:
        driver.enqueue(request)
    assert ids(lease(transport, n=3)) == ["req_3", "req_1", "req_2"]


def test_the_least_served_tenant_is_next(driver: QueueDriver, transport: EngineTransport) -> None:
    for i in range(3):
        driver.enqueue(make_request("ten_a", request_id=f"a{i}", prompt=range(10)))
    for i in range(9):
        driver.enqueue(make_request("ten_b", request_id=f"b{i}", prompt=range(3)))
    order = [request.tenant_id for request in lease(transport, n=8)]
    assert order.count("ten_b") in (5, 6)  # a third of the prompt: about three times as many
    assert order[:2] == ["ten_a", "ten_b"]


def test_a_repeated_submission_is_one_request(
    driver: QueueDriver, transport: EngineTransport
) -> None:
    request = make_request()
    assert [driver.enqueue(request), driver.enqueue(request)] == ["queued", "known"]
    assert len(lease(transport, n=5)) == 1
    assert driver.enqueue(request) == "known"
    assert lease(transport, n=5) == []


def test_a_lost_reply_does_not_lose_the_leases(
    driver: QueueDriver, transport: EngineTransport
) -> None:
    for _ in range(3):
        driver.enqueue(make_request())
    first = lease(transport, n=2)
    transport._ask -= 1  # as if the reply had not come
    assert ids(lease(transport, n=2)) == ids(first)
    assert len(lease(transport, n=2)) == 1


def test_who_was_away_gets_no_credit_for_it(
    driver: QueueDriver, transport: EngineTransport, server: redis.Redis
) -> None:
    for i in range(50):
        driver.enqueue(make_request("ten_busy", request_id=f"busy{i}", prompt=range(100)))
    lease(transport, n=40)
    for i in range(50):
        driver.enqueue(make_request("ten_new", request_id=f"new{i}", prompt=range(100)))
    assert counters(server)["ten_new"] == counters(server)["ten_busy"] == 4000
    order = [request.tenant_id for request in lease(transport, n=10)]
    assert order.count("ten_busy") == 5


def test_who_comes_to_an_empty_queue_gets_no_credit_either(
    driver: QueueDriver, transport: EngineTransport
) -> None:
    for _ in range(40):  # served at once, so the queue is empty each time
        driver.enqueue(make_request("ten_busy", prompt=range(100)))
        assert len(lease(transport)) == 1
    for _ in range(20):
        driver.enqueue(make_request("ten_new", prompt=range(100)))
        driver.enqueue(make_request("ten_busy", prompt=range(100)))
    order = [request.tenant_id for request in lease(transport, n=10)]
    assert order.count("ten_busy") in (4, 5, 6)


def test_generated_tokens_are_charged_at_heartbeat(
    driver: QueueDriver, transport: EngineTransport, server: redis.Redis
) -> None:
    for _ in range(2):
        driver.enqueue(make_request("ten_a", prompt=range(5)))
    lease(transport)
    transport.heartbeat(EngineStatus(generated_tokens={"ten_a": 7}))
    transport.heartbeat(EngineStatus())
    assert counters(server) == {"ten_a": 5 + 2 * 7}
    assert server.zscore(f"{keys.PREFIX}tenants", "ten_a") == 5 + 2 * 7


def test_running_again_is_free_and_has_a_new_epoch(
    driver: QueueDriver, transport: EngineTransport, server: redis.Redis
) -> None:
    request = EngineRequest(
        request_id="req_again",
        tenant_id="ten_a",
        api_id="api-test",
        epoch=1,
        prompt_token_ids=[1, 2, 3],
        sampling=make_request().sampling,
        delivered_token_ids=[4, 5],
    )
    driver.enqueue(request)
    [leased] = lease(transport)
    assert (leased.epoch, leased.delivered_token_ids) == (2, [4, 5])
    assert counters(server) == {"ten_a": 0}


def test_small_requests_pass_a_young_one_that_does_not_fit(
    driver: QueueDriver, transport: EngineTransport
) -> None:
    driver.enqueue(make_request("ten_a", request_id="big", prompt=range(100)))
    driver.enqueue(make_request("ten_a", request_id="small", prompt=range(10)))
    driver.enqueue(make_request("ten_b", request_id="other", prompt=range(10)))
    assert ids(lease(transport, n=3, free_pages=2)) == ["small", "other"]


def test_a_big_request_bars_the_way_once_it_waited_long(
    driver: QueueDriver, transport: EngineTransport, server: redis.Redis
) -> None:
    driver.enqueue(make_request("ten_a", request_id="big", prompt=range(100)))
    driver.enqueue(make_request("ten_b", request_id="small", prompt=range(10)))
    server.hincrby(f"{keys.PREFIX}request:big", "arrived_ms", -1000)
    assert lease(transport, n=2, free_pages=2) == []
    assert ids(lease(transport, n=2, free_pages=7)) == ["big"]
    assert ids(lease(transport, n=2, free_pages=2)) == ["small"]


def test_what_fits_in_no_engine_is_given_out_to_be_refused(
    driver: QueueDriver, transport: EngineTransport
) -> None:
    driver.enqueue(make_request(request_id="huge", prompt=range(1000)))
    assert lease(transport, free_pages=3) == []
    assert ids(transport.lease(3, PAGE_TOKENS, 1, total_pages=10)) == ["huge"]


def test_leases_do_not_exceed_the_free_pages(
    driver: QueueDriver, transport: EngineTransport
) -> None:
    for _ in range(10):
        driver.enqueue(make_request(prompt=range(16)))  # 17 tokens with the first generated one
    assert len(lease(transport, n=10, free_pages=5)) == 2


def test_an_idle_engine_is_woken_once_per_request(
    driver: QueueDriver, transport: EngineTransport
) -> None:
    assert lease(transport) == []
    driver.enqueue(make_request())
    driver.enqueue(make_request())
    assert transport.wait_control(1) == [Wake()]
    assert transport.wait_control(0) == []


def test_the_roomiest_idle_engine_is_woken(driver: QueueDriver, redis_url: str) -> None:
    full, empty = (
        EngineTransport(redis_url, "full", secret=QUEUE_SECRET),
        EngineTransport(redis_url, "empty", secret=QUEUE_SECRET),
    )
    assert lease(empty, free_pages=100) == lease(full, free_pages=1) == []
    driver.enqueue(make_request(prompt=range(100)))
    assert full.wait_control(0) == []
    assert empty.wait_control(0) == [Wake()]
    full.close()
    empty.close()


def test_a_dead_idle_engine_does_not_swallow_the_wake(
    driver: QueueDriver, transport: EngineTransport, redis_url: str, server: redis.Redis
) -> None:
    dead = EngineTransport(redis_url, "dead", secret=QUEUE_SECRET)
    lease(dead, free_pages=PLENTY + 1)
    lease(transport)
    server.delete(f"{keys.PREFIX}engine:dead")
    driver.enqueue(make_request())
    assert transport.wait_control(0) == [Wake()]
    dead.close()


def test_aborting_what_waits_removes_it(
    driver: QueueDriver, transport: EngineTransport, server: redis.Redis
) -> None:
    request = make_request()
    driver.enqueue(request)
    assert driver.abort(request.request_id) == "queued"
    assert lease(transport) == []
    assert server.keys(f"{keys.PREFIX}queue:*") == server.keys(f"{keys.PREFIX}request:*") == []


def test_aborting_what_runs_tells_its_engine(
    driver: QueueDriver, transport: EngineTransport, server: redis.Redis
) -> None:
    request = make_request()
    driver.enqueue(request)
    lease(transport)
    assert driver.abort(request.request_id, only_queued=True) == "leased"
    assert transport.wait_control(0) == []
    assert driver.abort(request.request_id) == "leased"
    assert transport.wait_control(1) == [Abort(request_id=request.request_id, epoch=1)]
    assert server.hlen(keys.LEASES) == 0
    assert server.keys(f"{keys.PREFIX}request:*") == []


def test_the_last_output_ends_the_lease(
    driver: QueueDriver, transport: EngineTransport, server: redis.Redis
) -> None:
    driver.enqueue(make_request())
    [leased] = lease(transport)
    finish(transport, leased)
    assert driver.states(leased.request_id) == "u"
    assert server.hlen(keys.LEASES) == 0


def test_the_last_output_of_an_old_epoch_ends_nothing(
    driver: QueueDriver, transport: EngineTransport
) -> None:
    driver.enqueue(make_request())
    [leased] = lease(transport)
    finish(transport, leased, epoch=leased.epoch - 1)
    assert driver.states(leased.request_id) == "l"


def test_one_entry_per_api_process_per_step(
    driver: QueueDriver, transport: EngineTransport, server: redis.Redis
) -> None:
    for api_id in ("api-1", "api-2"):
        for _ in range(5):
            driver.enqueue(make_request(api_id=api_id))
    batches: dict[str, OutputBatch] = {}
    for request in lease(transport, n=10):
        output = TokenOutput(
            request_id=request.request_id,
            epoch=request.epoch,
            index=0,
            token_ids=[1],
            num_prompt_tokens=3,
            num_generated_tokens=1,
        )
        batch = batches.setdefault(request.api_id, OutputBatch(engine_id="engine-0", outputs=[]))
        batch.outputs.append(output)
    transport.publish(batches)
    for api_id in ("api-1", "api-2"):
        assert server.xlen(keys.out(api_id)) == 1
        assert 0 < server.pttl(keys.out(api_id)) <= 60_000


def test_an_unreadable_request_is_answered_and_the_engine_lives(
    driver: QueueDriver, transport: EngineTransport, redis_url: str, server: redis.Redis
) -> None:
    driver.enqueue(make_request(request_id="broken"))
    driver.enqueue(make_request(request_id="sound"))
    server.hset(f"{keys.PREFIX}request:broken", "message", "\x01nonsense")
    assert ids(lease(transport, n=2)) == ["sound"]
    with redis.Redis.from_url(redis_url, protocol=2) as raw:
        [(_, fields)] = raw.xrange(keys.out("api-test"))
    batch, _ = Codec(QUEUE_SECRET).decode_batch(fields[b"batch"])
    [answer] = batch.outputs
    assert answer.request_id == "broken"
    assert answer.error is not None and answer.error.code == "message_invalid"
    assert driver.states("broken") == "u"


def test_an_unreadable_control_message_is_dropped(
    transport: EngineTransport, server: redis.Redis
) -> None:
    server.rpush(keys.control("engine-0"), "nonsense", Codec(QUEUE_SECRET).encode(Wake()))
    assert transport.wait_control(1) == [Wake()]


def test_a_request_without_its_body_does_not_stop_the_others(
    driver: QueueDriver, transport: EngineTransport, server: redis.Redis
) -> None:
    driver.enqueue(make_request("ten_a", request_id="bodiless"))
    driver.enqueue(make_request("ten_b", request_id="sound"))
    server.delete(f"{keys.PREFIX}request:bodiless")
    assert ids(lease(transport)) == ["sound"]
    assert server.zcard(f"{keys.PREFIX}tenants") == 0


def test_residency_is_told_by_difference(transport: EngineTransport, server: redis.Redis) -> None:
    transport.update_resident([ADAPTER])
    assert server.smembers(keys.resident("engine-0")) == {f"ten_a/{ADAPTER.digest}"}
    transport.update_resident([], [ADAPTER])
    assert server.smembers(keys.resident("engine-0")) == set()


def test_counters_stay_whole_numbers_however_large(
    driver: QueueDriver, transport: EngineTransport, server: redis.Redis
) -> None:
    transport.heartbeat(EngineStatus(generated_tokens={"ten_a": 4 * 10**15}))
    driver.enqueue(make_request("ten_a", prompt=[1]))
    driver.enqueue(make_request("ten_a", prompt=[1]))
    lease(transport)
    driver.enqueue(make_request("ten_b", prompt=[1]))
    assert counters(server) == {"ten_a": 8 * 10**15 + 1, "ten_b": 8 * 10**15 + 1}


def test_a_short_wait_hears_what_a_long_one_hears(
    transport: EngineTransport, driver: QueueDriver
) -> None:
    for timeout_s in (0, 0.005, 0.5):
        assert transport.wait_control(timeout_s) == []
        lease(transport)
        driver.enqueue(make_request())
        assert transport.wait_control(timeout_s) == [Wake()]
        assert len(lease(transport)) == 1
