"""Requests of a dead API process end once, as `api_lost`; a live one's never do."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import replace

import msgspec
import pytest
from redis.asyncio import Redis
from redis.exceptions import ConnectionError
from sqlalchemy import text

from app.admission.messages import Record, Settlement
from app.db import Database, ledger_scope
from app.requests.acceptance import Acceptance
from app.requests.consumer import UsageConsumer
from app.requests.sweeper import Sweeper
from engine.messages import UsageAuthor
from engine.transport import keys
from engine.transport.errors import QueueUnavailableError
from tests.app.requests.conftest import Rows
from tests.app.requests.test_consumer import consume, say
from tests.builders.usage import make_record, new_request

LOST_AFTER_S = 5.0
STEADY_S = 10.0


class Time:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def time() -> Time:
    return Time()


@pytest.fixture
def sweeper(registry: Database, queue: Redis, time: Time) -> Sweeper:
    return Sweeper(registry, queue, api_lost_after_s=LOST_AFTER_S, steady_s=STEADY_S, clock=time)


@pytest.fixture
async def accepted(database_url: str) -> None:
    acceptance = Acceptance(database_url, timeout_s=5.0)
    await acceptance.start()
    for api_id in ("api-dead", "api-live"):
        await acceptance.accept([new_request(f"req_{api_id}", api_id=api_id)])
    await acceptance.close()


Beat = Callable[[], Awaitable[None]]


@pytest.fixture
def beat(queue: Redis) -> Beat:
    async def beat() -> None:
        await queue.set(keys.api("api-live"), 1)

    return beat


async def sweep_for(sweeper: Sweeper, time: Time, seconds: int) -> int:
    num_lost = 0
    for _ in range(seconds):
        num_lost += await sweeper.sweep()
        time.now += 1
    return num_lost


async def test_a_dead_process_requests_end_once_as_api_lost(
    sweeper: Sweeper, time: Time, rows: Rows, accepted: None, beat: Beat
) -> None:
    await beat()
    assert await sweep_for(sweeper, time, 10) == 0  # it may have been away itself
    assert await sweep_for(sweeper, time, 10) == 1
    assert await sweep_for(sweeper, time, 10) == 0
    [final] = await rows.finals()
    assert (final["request_id"], final["finish_reason"]) == ("req_api-dead", "api_lost")
    assert {row["request_id"]: row["state"] for row in await rows.requests()} == {
        "req_api-dead": "ended",
        "req_api-live": "accepted",
    }


async def test_the_last_checkpoint_is_what_a_lost_request_used(
    sweeper: Sweeper,
    time: Time,
    rows: Rows,
    accepted: None,
    beat: Beat,
    consumer: UsageConsumer,
    queue: Redis,
) -> None:
    await beat()
    await say(queue, make_record("req_api-dead", generated=64, reason=None))
    await consume(consumer)
    await sweep_for(sweeper, time, 20)
    [final] = await rows.finals()
    assert (final["num_generated_tokens"], final["epoch"]) == (64, 1)


async def test_a_late_word_of_the_engine_adds_no_second_end(
    sweeper: Sweeper,
    time: Time,
    rows: Rows,
    accepted: None,
    beat: Beat,
    consumer: UsageConsumer,
    queue: Redis,
) -> None:
    await beat()
    await sweep_for(sweeper, time, 20)
    await say(queue, make_record("req_api-dead", reason="abort", generated=9))
    await consume(consumer)
    [final] = await rows.finals()
    assert (final["finish_reason"], final["num_generated_tokens"]) == ("api_lost", 9)


async def test_a_redis_that_loses_its_data_again_and_again_ends_no_live_request(
    sweeper: Sweeper, time: Time, rows: Rows, accepted: None, beat: Beat, queue: Redis
) -> None:
    for _ in range(5):
        await queue.flushall()
        assert await sweep_for(sweeper, time, 9) == 0  # nobody has spoken yet
        await beat()
        assert await sweep_for(sweeper, time, 1) == 0
    assert await rows.finals() == []


async def test_a_sweep_that_fails_amid_what_it_takes_back_leaves_nothing_behind(
    sweeper: Sweeper,
    time: Time,
    rows: Rows,
    accepted: None,
    database_url: str,
    queue: Redis,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """An engine that said goodbye leaves its leases to the API processes: here both are gone."""
    names = ["req_api-dead", "req_more", "req_most"]
    acceptance = Acceptance(database_url, timeout_s=5.0)
    await acceptance.start()
    await acceptance.accept([new_request(name, api_id="api-dead") for name in names[1:]])
    await acceptance.close()
    for name in names:
        await queue.hset(keys.LEASES, name, "1:boot:engine-gone")
        await queue.hset(f"{keys.PREFIX}request:{name}", "tenant", "ten_a")
    await queue.set(keys.api("api-live"), 1)
    abort, num_asked = sweeper._abort, 0

    async def fail_at_the_second(args: object) -> None:
        nonlocal num_asked
        num_asked += 1
        if num_asked == 2:
            raise ConnectionError("Redis went away")
        await abort(args=args)

    monkeypatch.setattr(sweeper, "_abort", fail_at_the_second)
    assert await sweep_for(sweeper, time, 10) == 0
    with pytest.raises(QueueUnavailableError):
        await sweep_for(sweeper, time, 10)
    assert len(await queue.hgetall(keys.LEASES)) == 2, "it failed amid them"
    assert await sweep_for(sweeper, time, 2) == 3
    assert await queue.hgetall(keys.LEASES) == {}
    assert await queue.keys(f"{keys.PREFIX}request:*") == []
    finals = await rows.finals()
    assert sorted(row["request_id"] for row in finals) == names
    assert {row["finish_reason"] for row in finals} == {"api_lost"}


async def test_what_another_process_accepts_again_amid_a_sweep_is_not_lost(
    sweeper: Sweeper,
    time: Time,
    rows: Rows,
    accepted: None,
    beat: Beat,
    registry: Database,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As a worker does with the lines of a batch that a dead one had."""
    await beat()
    abort = sweeper._abort
    taken_over = text("UPDATE requests SET api_id = 'api-live' WHERE api_id = 'api-dead'")

    async def abort_late(args: object) -> None:
        async with registry.session() as session:
            await ledger_scope(session)
            await session.execute(taken_over)
            await session.commit()
        await abort(args=args)

    monkeypatch.setattr(sweeper, "_abort", abort_late)
    assert await sweep_for(sweeper, time, 20) == 0
    assert await rows.finals() == []


async def test_what_admission_was_not_told_of_a_sweep_the_next_one_tells(
    sweeper: Sweeper,
    time: Time,
    database_url: str,
    queue: Redis,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    record = Record(subjects=["tenant:ten_a"], tokens=19, cost=0, day=20000, now_ms=0)
    lost = replace(new_request("req_lost"), decision=msgspec.json.encode(record).decode())
    acceptance = Acceptance(database_url, timeout_s=5.0)
    await acceptance.start()
    await acceptance.accept([lost])
    await acceptance.close()
    apply, told = sweeper._settler.apply, list[Settlement]()

    async def fail_once(settlement: Settlement) -> None:
        if settlement.ended:
            told.append(settlement)
            if len(told) == 1:
                raise QueueUnavailableError("Redis went away")
        await apply(settlement)

    monkeypatch.setattr(sweeper._settler, "apply", fail_once)
    with pytest.raises(QueueUnavailableError):
        await sweep_for(sweeper, time, 20)
    assert await sweep_for(sweeper, time, 2) == 0
    assert [each.ended[0].id for each in told] == ["req_lost", "req_lost"]


async def test_what_its_process_ended_is_not_swept(
    sweeper: Sweeper,
    time: Time,
    rows: Rows,
    accepted: None,
    beat: Beat,
    consumer: UsageConsumer,
    queue: Redis,
) -> None:
    await beat()
    await say(queue, make_record("req_api-dead", reason="queue_timeout", author=UsageAuthor.API))
    await consume(consumer)
    assert await sweep_for(sweeper, time, 20) == 0
    [final] = await rows.finals()
    assert final["finish_reason"] == "queue_timeout"
