"""A Postgres that takes nothing loses nothing, and one that vanishes holds nobody up."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest
from redis.asyncio import Redis

from app.context import AppContext
from app.db import Database
from app.errors import UnavailableError
from app.requests.acceptance import Acceptance
from app.requests.consumer import UsageConsumer
from app.requests.repository import LedgerRepository
from engine.transport import keys
from tests.app.requests.conftest import Rows, consumer, queue, registry, relay, relayed_url, rows
from tests.app.requests.test_acceptance import accepted_soon
from tests.app.requests.test_consumer import consume, say
from tests.builders.operator import Operator
from tests.builders.queue_secret import QUEUE_SECRET
from tests.builders.relay import Relay
from tests.builders.unwilling_postgres import UnwillingPostgres
from tests.builders.usage import make_record, new_request
from tests.builders.waiting import until
from tests.fixtures.servers import TestDatabase

__all__ = ["consumer", "queue", "registry", "relay", "relayed_url", "rows"]

TAKES_NOTHING_NOW = ("40001", "40P01", "53100", "55P03", "57014", "58030")
REFUSES_THE_VALUE = ("22003", "23514")
TIMEOUT_S = 0.5
NOTICED_S = 30.0
"""That it is over, at all: twice the time-out, and a busy machine."""


@pytest.fixture
async def postgres_says(database: TestDatabase) -> AsyncIterator[UnwillingPostgres]:
    owner = Database(database.owner_url, pool_size=1)
    yield UnwillingPostgres(owner)
    await owner.close()


async def ids(rows: Rows) -> list[str]:
    return [row["request_id"] for row in await rows.events()]


async def test_what_was_used_waits_while_postgres_is_read_only_and_is_written_once(
    consumer: UsageConsumer, queue: Redis, rows: Rows, postgres_says: UnwillingPostgres
) -> None:
    await consume(consumer)
    await postgres_says.become_read_only()
    names = [f"req_{number:02}" for number in range(20)]
    await say(queue, *map(make_record, names))
    for _ in range(3):
        with pytest.raises(UnavailableError, match="ReadOnly"):
            await consumer.run_once()
    assert await queue.xlen(keys.USAGE) == 20 and await rows.events() == []

    await postgres_says.become_writable()
    await consume(consumer)  # on a new connection: the old one is read-only for ever

    assert await ids(rows) == names
    assert await queue.xlen(keys.USAGE) == 0 and not any(consumer.num_refused.values())


async def test_what_was_used_waits_whatever_the_reason_for_which_postgres_takes_nothing(
    consumer: UsageConsumer, queue: Redis, rows: Rows, postgres_says: UnwillingPostgres
) -> None:
    await consume(consumer)
    await say(queue, make_record("req_a"), make_record("req_b"))
    for state in TAKES_NOTHING_NOW:
        await postgres_says.refuse(state)
        with pytest.raises(UnavailableError):
            await consumer.run_once()
        assert await queue.xlen(keys.USAGE) == 2, state
    await postgres_says.refuse_no_more()
    await consume(consumer)
    assert await ids(rows) == ["req_a", "req_b"]
    assert not any(consumer.num_refused.values())


async def test_control_what_postgres_would_never_take_is_given_up(
    consumer: UsageConsumer, queue: Redis, rows: Rows, postgres_says: UnwillingPostgres
) -> None:
    await consume(consumer)
    for number, state in enumerate(REFUSES_THE_VALUE, start=1):
        await postgres_says.refuse(state)
        await say(queue, make_record())
        await consume(consumer)
        assert await queue.xlen(keys.USAGE) == 0
        assert consumer.num_refused["refused"] == number, state
    assert await rows.events() == []


async def test_a_read_only_postgres_is_a_dependency_that_is_away(
    operator: Operator, context: AppContext, postgres_says: UnwillingPostgres
) -> None:
    await postgres_says.become_read_only()
    refused = await operator.call("POST", "/tenants", json={"slug": "acme"})
    assert (refused.status_code, refused.json()["error"]["code"]) == (503, "dependency_unavailable")
    assert (await operator.call("GET", "/tenants")).status_code == 200
    await postgres_says.become_writable()
    await operator.new_tenant("acme")


async def test_what_postgres_refuses_to_accept_is_in_nobodys_way_afterwards(
    relayed_url: str, rows: Rows, postgres_says: UnwillingPostgres
) -> None:
    acceptance = Acceptance(relayed_url, timeout_s=5.0)
    await acceptance.start()
    for state in ("53100", "25006", "57014"):
        await postgres_says.refuse(state)
        for _ in range(3):
            with pytest.raises(UnavailableError):
                await acceptance.accept([new_request()])
        assert acceptance.num_unsettled == 0, state
    await postgres_says.refuse("57P01")
    with pytest.raises(UnavailableError):
        await acceptance.accept([new_request("req_doubtful")])
    assert acceptance.num_unsettled == 1, "the control: it may have been committed"

    await postgres_says.refuse_no_more()
    await accepted_soon(acceptance)
    await until(lambda: not acceptance.num_unsettled)
    states = {row["request_id"]: row["state"] for row in await rows.requests()}
    assert states == {"req_doubtful": "ended", "req_after": "accepted"}
    await acceptance.close()


async def test_while_too_much_is_in_doubt_nothing_more_is_begun(
    relayed_url: str,
    rows: Rows,
    postgres_says: UnwillingPostgres,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("app.requests.acceptance.MAX_UNSETTLED", 2)
    acceptance = Acceptance(relayed_url, timeout_s=5.0)
    await acceptance.start()
    await postgres_says.refuse("57P01")
    for _ in range(5):
        with pytest.raises(UnavailableError):
            await acceptance.accept([new_request()])
    assert acceptance.num_unsettled == 2
    await postgres_says.refuse_no_more()
    await accepted_soon(acceptance)
    await acceptance.close()
    assert len(await rows.requests()) == 3


async def test_a_postgres_that_vanishes_without_a_word_holds_the_ledger_up_for_seconds(
    queue: Redis, rows: Rows, relay: Relay, relayed_url: str
) -> None:
    registry = Database(relayed_url, pool_size=1, statement_timeout_s=TIMEOUT_S)
    consumer = UsageConsumer(registry, queue, secret=QUEUE_SECRET)
    await say(queue, make_record("req_a"))
    await consume(consumer)
    relay.strand()
    await say(queue, make_record("req_b"))
    consuming = asyncio.create_task(consumer.run_once())
    await asyncio.wait((consuming,), timeout=NOTICED_S)
    relay.cut()  # where it was held up
    relay.restore()
    with pytest.raises(UnavailableError, match="Timeout"):
        await consuming
    await consume(consumer)
    assert await ids(rows) == ["req_a", "req_b"]
    await registry.close()


async def test_control_without_a_time_out_it_is_held_up_for_as_long_as_nobody_hangs_up(
    queue: Redis, rows: Rows, relay: Relay, relayed_url: str
) -> None:
    registry = Database(relayed_url, pool_size=1)
    consumer = UsageConsumer(registry, queue, secret=QUEUE_SECRET)
    await say(queue, make_record("req_a"))
    await consume(consumer)
    relay.strand()
    await say(queue, make_record("req_b"))
    consuming = asyncio.create_task(consumer.run_once())
    await asyncio.sleep(4 * TIMEOUT_S)
    assert not consuming.done()
    relay.cut()
    await asyncio.wait((consuming,))
    relay.restore()
    await consume(consumer)
    assert await ids(rows) == ["req_a", "req_b"]
    await registry.close()


async def test_a_worker_that_vanishes_amid_a_transaction_gives_the_ledger_back(
    consumer: UsageConsumer,
    queue: Redis,
    rows: Rows,
    relay: Relay,
    relayed_url: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("app.requests.repository.MAX_SILENCE", "500ms")
    await say(queue, make_record())
    vanishing = Database(relayed_url, pool_size=1)
    async with vanishing.session() as session:
        await LedgerRepository(session).open()
        relay.strand()
        try:
            await asyncio.wait_for(consume(consumer), NOTICED_S)
        finally:
            relay.cut()
    assert len(await rows.events()) == 1
    await vanishing.close()
