"""What was said on the usage stream is in the ledger once, whatever dies on the way."""

from __future__ import annotations

import random

import pytest
from redis.asyncio import Redis

from app.db import Database
from app.errors import UnavailableError
from app.requests.consumer import GROUP, UsageConsumer
from engine.messages import UsageRecord
from engine.transport import keys
from engine.transport.codec import Codec
from tests.app.requests.conftest import Rows
from tests.builders.queue_secret import QUEUE_SECRET
from tests.builders.relay import Relay
from tests.builders.usage import make_record


async def say(queue: Redis, *records: UsageRecord) -> None:
    for record in records:
        await queue.xadd(keys.USAGE, {"record": Codec(QUEUE_SECRET).encode(record)})


async def consume(consumer: UsageConsumer) -> None:
    while await consumer.run_once() or not consumer.is_caught_up:
        pass


async def test_a_record_said_many_times_in_any_order_is_one_row(
    consumer: UsageConsumer, queue: Redis, rows: Rows
) -> None:
    told = [make_record(generated=n, reason=None) for n in (64, 128)]
    told += [make_record(generated=130, reason="stop"), make_record(epoch=0, generated=500)]
    told *= 3
    random.Random(7).shuffle(told)
    for record in told:
        await say(queue, record)
        await consume(consumer)
    events = await rows.events()
    assert [(row["event"], row["num_generated_tokens"]) for row in events] == [
        ("checkpoint", 128),
        ("final", 130),
    ]
    assert await queue.xlen(keys.USAGE) == 0


class DiesBeforeAcknowledging(UsageConsumer):
    """A worker that is killed after its transaction was committed."""

    async def _acknowledge(self, entry_ids: object) -> None:
        raise KeyboardInterrupt


async def test_a_worker_killed_between_commit_and_acknowledgement_writes_no_second_row(
    registry: Database, queue: Redis, rows: Rows
) -> None:
    first = DiesBeforeAcknowledging(registry, queue, secret=QUEUE_SECRET)
    await first.run_once()  # makes the group
    await say(queue, make_record())
    with pytest.raises(KeyboardInterrupt):
        await first.run_once()
    [before] = await rows.events()
    assert (await queue.xpending(keys.USAGE, GROUP))["pending"] == 1

    await consume(UsageConsumer(registry, queue, claim_after_s=0.0, secret=QUEUE_SECRET))

    [after] = await rows.events()
    assert after["num_generated_tokens"] == before["num_generated_tokens"]
    assert await queue.xlen(keys.USAGE) == 0


async def test_it_is_not_caught_up_while_something_waits_that_it_has_not_read(
    registry: Database, queue: Redis
) -> None:
    first = DiesBeforeAcknowledging(registry, queue, secret=QUEUE_SECRET)
    await first.run_once()  # makes the group
    await say(queue, make_record())
    with pytest.raises(KeyboardInterrupt):
        await first.run_once()
    await say(queue, make_record())

    heir = UsageConsumer(registry, queue, claim_after_s=0.0, secret=QUEUE_SECRET)
    assert await heir.run_once() == 1  # what the dead one had read
    assert not heir.is_caught_up
    assert await heir.run_once() == 1
    assert heir.is_caught_up


async def test_records_wait_in_the_stream_while_postgres_is_away(
    queue: Redis, rows: Rows, relay: Relay, relayed_url: str
) -> None:
    registry = Database(relayed_url, pool_size=1)
    consumer = UsageConsumer(registry, queue, secret=QUEUE_SECRET)
    await consume(consumer)
    relay.cut()
    await say(queue, make_record("req_a"), make_record("req_b"))
    for _ in range(3):
        with pytest.raises(UnavailableError):
            await consumer.run_once()
    assert await queue.xlen(keys.USAGE) == 2 and await rows.events() == []

    relay.restore()
    await consume(consumer)

    assert [row["request_id"] for row in await rows.events()] == ["req_a", "req_b"]
    assert await queue.xlen(keys.USAGE) == 0
    await registry.close()


async def test_what_cannot_be_read_or_written_does_not_bar_the_way(
    consumer: UsageConsumer, queue: Redis, rows: Rows
) -> None:
    await queue.xadd(keys.USAGE, {"record": b"nonsense"})
    await queue.xadd(keys.USAGE, {"other": b"field"})
    unfit = [make_record("req_\0"), make_record("req_large", generated=2**40)]
    await say(queue, make_record("req_a"), *unfit, make_record("req_b"))
    await consume(consumer)
    assert [row["request_id"] for row in await rows.events()] == ["req_a", "req_b"]
    assert await queue.xlen(keys.USAGE) == 0
    assert consumer.num_refused == {"unreadable": 2, "refused": 2}


async def test_a_redis_that_lost_its_data_is_read_on(
    consumer: UsageConsumer, queue: Redis, rows: Rows
) -> None:
    await consume(consumer)
    await queue.flushall()
    await say(queue, make_record())
    await consume(consumer)
    assert len(await rows.events()) == 1


async def test_a_forged_record_is_not_written(
    consumer: UsageConsumer, queue: Redis, rows: Rows
) -> None:
    forged = Codec("secret-of-a-forger").encode(make_record(generated=10**6))
    await consume(consumer)
    await queue.xadd(keys.USAGE, {"record": forged})
    await say(queue, make_record(generated=5))
    await consume(consumer)
    assert [row["num_generated_tokens"] for row in await rows.events()] == [5]
    assert await queue.xlen(keys.USAGE) == 0
