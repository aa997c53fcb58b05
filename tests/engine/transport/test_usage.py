"""What engines and API processes say on the usage stream, and who stops working for whom."""

from __future__ import annotations

import time

import msgspec
import pytest
import redis

from engine.messages import (
    Abort,
    FinishReason,
    OutputBatch,
    TokenOutput,
    UsageAuthor,
    UsageRecord,
)
from engine.transport import keys
from engine.transport.client import QueueClient
from engine.transport.codec import Codec
from engine.transport.connection import open_async_redis
from engine.transport.liveness import ApiWatch
from engine.transport.reports import UsageReporter, record_of_unsubmitted
from engine.transport.server import EngineTransport
from tests.builders.queue_driver import QueueDriver
from tests.builders.queue_secret import QUEUE_SECRET
from tests.builders.requests import make_request
from tests.builders.stub_engine import StubEngine
from tests.builders.waiting import until, wait_until


@pytest.fixture
def raw(redis_url: str) -> redis.Redis:
    return redis.Redis.from_url(redis_url, protocol=2)


def said(raw: redis.Redis) -> list[UsageRecord]:
    codec = Codec(QUEUE_SECRET)
    return [codec.decode_usage(fields[b"record"]) for _, fields in raw.xrange(keys.USAGE)]


def output(index: int, *, epoch: int = 1, reason: FinishReason | None = None) -> TokenOutput:
    return TokenOutput(
        request_id="req_a",
        epoch=epoch,
        index=index,
        token_ids=[7],
        num_prompt_tokens=3,
        num_generated_tokens=index + 1,
        finish_reason=reason,
    )


def publish(transport: EngineTransport, *outputs: TokenOutput) -> None:
    batch = OutputBatch(engine_id=transport.engine_id, outputs=list(outputs))
    assert transport.publish({"api-test": batch})


def test_an_end_and_every_64_tokens_are_said_with_absolute_counts(
    driver: QueueDriver, transport: EngineTransport, raw: redis.Redis
) -> None:
    driver.enqueue(make_request(request_id="req_a", max_tokens=150))
    [leased] = transport.lease(100, 16, 1)
    for index in range(149):
        publish(transport, output(index))
    publish(transport, output(149, reason=FinishReason.LENGTH))
    records = said(raw)
    counts = [(record.num_generated_tokens, record.finish_reason) for record in records]
    assert counts == [(64, None), (128, None), (150, "length")]
    assert {record.author for record in records} == {UsageAuthor.ENGINE}
    assert {record.queue_ms for record in records} == {leased.queue_ms}


def test_an_engine_that_lost_its_lease_has_no_say_in_the_bill(
    driver: QueueDriver, transport: EngineTransport, raw: redis.Redis
) -> None:
    driver.enqueue(make_request(request_id="req_a", max_tokens=150))
    transport.lease(100, 16, 1)
    raw.hset(keys.LEASES, "req_a", "2:boot:engine-1")  # leased again, to another
    publish(transport, output(0, epoch=1, reason=FinishReason.LENGTH))
    assert said(raw) == []


def test_control_the_same_output_of_the_lease_in_force_is_said(
    driver: QueueDriver, transport: EngineTransport, raw: redis.Redis
) -> None:
    driver.enqueue(make_request(request_id="req_a", max_tokens=150))
    transport.lease(100, 16, 1)
    publish(transport, output(0, epoch=1, reason=FinishReason.LENGTH))
    assert [record.num_generated_tokens for record in said(raw)] == [1]


def test_an_aborted_request_is_said_once_with_what_was_handed_over(
    driver: QueueDriver, transport: EngineTransport, raw: redis.Redis
) -> None:
    driver.enqueue(make_request(request_id="req_a", max_tokens=150))
    transport.lease(100, 16, 1)
    publish(transport, output(0))
    abort = Abort(request_id="req_a", epoch=1)
    for _ in range(2):
        assert transport.publish_end(abort, "abort")
    assert [(r.num_generated_tokens, r.finish_reason) for r in said(raw)] == [(1, "abort")]
    assert not raw.hexists(keys.LEASES, "req_a")


async def test_work_for_a_dead_api_process_is_aborted_within_two_seconds(
    redis_url: str, raw: redis.Redis
) -> None:
    client = QueueClient(redis_url, "api-test", secret=QUEUE_SECRET)
    await client.start()
    with StubEngine(redis_url, step_s=0.01) as engine:
        await client.submit(make_request(request_id="req_a", max_tokens=100_000))
        await until(lambda: engine.num_running == 1)
        time.sleep(2.5)  # noqa: ASYNC251 (the loop is as stalled as can be; its heartbeat is not)
        assert engine.aborted == []

        client._heartbeat.stop()  # what SIGKILL does: the key is gone, or expires
        died_at = time.monotonic()
        wait_until(lambda: engine.aborted == ["req_a"])
        assert time.monotonic() - died_at < 2.0
        wait_until(lambda: bool(said(raw)) and said(raw)[-1].finish_reason == "api_lost")
        assert engine.num_running == 0
    await client.close()


class Reports:
    """What is said again after a loss, of records that come every ten seconds."""

    def __init__(self, redis_url: str) -> None:
        self.now = 0.0
        self.num_waiting = 0
        self._redis = open_async_redis(redis_url, max_connections=1)
        self._reporter = UsageReporter(
            self._redis, Codec(QUEUE_SECRET), lambda: self.now, num_waiting=lambda: self.num_waiting
        )
        self._num = 0

    def pass_by(self, seconds: int) -> None:
        for _ in range(seconds // 10):
            self.now += 10
            self._num += 1
            request = make_request(request_id=f"req_{self._num}")
            self._reporter.remember(record_of_unsubmitted(request, "length"))

    def num_said_again(self) -> int:
        before = self._reporter.num_unsent
        self._reporter.repeat()
        return self._reporter.num_unsent - before


async def test_what_no_worker_has_taken_in_is_said_again_however_old_it_is(redis_url: str) -> None:
    reports = Reports(redis_url)
    reports.num_waiting = 1  # a worker that is away
    reports.pass_by(600)
    assert reports.num_said_again() == 60
    reports.num_waiting = 0  # for the moment, since Redis lost it
    reports.pass_by(10)
    assert reports.num_said_again() == 61


async def test_control_what_was_taken_in_is_forgotten(redis_url: str) -> None:
    reports = Reports(redis_url)
    reports.pass_by(600)
    assert reports.num_said_again() < 10


async def test_a_record_that_cannot_be_sent_holds_up_no_other(
    redis_url: str, raw: redis.Redis
) -> None:
    async with open_async_redis(redis_url, max_connections=1) as server:
        reporter = UsageReporter(server, Codec(QUEUE_SECRET), lambda: 0.0, num_waiting=lambda: 0)
        good = record_of_unsubmitted(make_request(request_id="req_good"), "abort")
        reporter.add(msgspec.structs.replace(good, num_generated_tokens=1 << 80))
        reporter.add(good)
        await reporter.send()
    assert said(raw) == [good] and reporter.num_unsent == 0


def test_a_redis_that_lost_its_data_proves_nobody_dead() -> None:
    now = [0.0]
    watch = ApiWatch(dead_after_s=0.5, steady_s=2.0, clock=lambda: now[0])

    def look_for(seconds: float, generation: bytes, is_present: bool) -> list[str]:
        dead: list[str] = []
        for _ in range(int(seconds / 0.25)):
            dead += watch.look(generation, {"api": is_present})
            now[0] += 0.25
        return dead

    look_for(5, b"one", True)
    assert look_for(1.9, b"two", False) == []  # emptied; the process has not spoken yet
    assert look_for(5, b"two", True) == []
    watch.forget()  # Redis was away
    assert look_for(1.9, b"two", False) == []
    assert look_for(2, b"two", False) != []
