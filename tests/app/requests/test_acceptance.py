"""Acceptances share commits, are never lost or left open, and never hang."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence

import pytest

from app.errors import UnavailableError
from app.requests.acceptance import NOT_ENQUEUED, Acceptance
from app.requests.acceptance_repository import NewRequest
from tests.app.requests.conftest import Rows
from tests.builders.own_time import own_time_s
from tests.builders.relay import Relay
from tests.builders.usage import new_request
from tests.builders.waiting import eventually, until

DEADLINE_S = 0.25


@pytest.fixture
async def acceptance(relayed_url: str) -> AsyncIterator[Acceptance]:
    opened = Acceptance(relayed_url, timeout_s=5.0)
    await opened.start()
    yield opened
    await opened.close()


async def accept(acceptance: Acceptance, num: int) -> None:
    await asyncio.gather(*(acceptance.accept([new_request()]) for _ in range(num)))


async def num_transactions(rows: Rows) -> int:
    return len({row["xmin"] for row in await rows.requests()})


async def test_requests_that_arrive_together_share_a_commit(
    acceptance: Acceptance, rows: Rows
) -> None:
    await accept(acceptance, 200)
    found = await rows.requests()
    assert len(found) == 200 and {row["state"] for row in found} == {"accepted"}
    assert await num_transactions(rows) == acceptance.num_commits <= 3


async def test_control_without_grouping_each_has_its_own_commit(
    relayed_url: str, rows: Rows
) -> None:
    acceptance = Acceptance(relayed_url, linger_s=0.0, max_rows=1, timeout_s=20.0)
    await acceptance.start()
    await accept(acceptance, 20)
    await acceptance.close()
    assert await num_transactions(rows) == 20


async def test_rows_of_one_call_are_accepted_together_and_of_several_tenants_at_once(
    acceptance: Acceptance, rows: Rows
) -> None:
    choices = [new_request(tenant_id="ten_a") for _ in range(3)]
    await asyncio.gather(
        acceptance.accept(choices), acceptance.accept([new_request(tenant_id="ten_b")])
    )
    assert [row["tenant_id"] for row in await rows.requests()].count("ten_a") == 3
    assert await num_transactions(rows) == 1


@pytest.fixture
async def impatient(relayed_url: str) -> AsyncIterator[Acceptance]:
    """As in production: 0.2 s."""
    opened = Acceptance(relayed_url)
    await opened.start()
    yield opened
    await opened.close()


async def refused_within(acceptance: Acceptance, deadline_s: float) -> None:
    started_at = own_time_s()
    with pytest.raises(UnavailableError) as refused:
        await acceptance.accept([new_request()])
    assert own_time_s() - started_at < deadline_s
    assert (refused.value.status, refused.value.code) == (503, "dependency_unavailable")


async def accepted_soon(acceptance: Acceptance) -> None:
    """As soon as Postgres is back, at most a few refusals later."""
    for _ in range(50):
        try:
            await acceptance.accept([new_request("req_after")])
            return
        except UnavailableError:
            await asyncio.sleep(0.1)
    pytest.fail("it did not recover")


async def test_with_postgres_gone_a_request_is_refused_in_time_and_served_when_it_is_back(
    impatient: Acceptance, relay: Relay, rows: Rows
) -> None:
    relay.cut()
    await refused_within(impatient, DEADLINE_S)
    await refused_within(impatient, DEADLINE_S)
    relay.restore()
    await accepted_soon(impatient)
    assert "req_after" in [row["request_id"] for row in await rows.requests()]


async def test_with_postgres_silent_a_request_is_refused_in_time_and_never_left_open(
    impatient: Acceptance, relay: Relay, rows: Rows
) -> None:
    relay.silence()
    for _ in range(3):
        await refused_within(impatient, DEADLINE_S)
    relay.restore()
    await accepted_soon(impatient)

    async def settled() -> bool:
        found = [row for row in await rows.requests() if row["request_id"] != "req_after"]
        return bool(found) and {row["state"] for row in found} == {"ended"}

    await eventually(settled)
    refused = {row["request_id"] for row in await rows.requests()} - {"req_after"}
    finals = await rows.finals()
    assert {row["request_id"] for row in finals} == refused
    assert {row["finish_reason"] for row in finals} == {NOT_ENQUEUED}


async def test_a_caller_that_leaves_before_the_commit_leaves_nothing_open(
    acceptance: Acceptance, relay: Relay, rows: Rows
) -> None:
    relay.silence()
    calling = asyncio.create_task(acceptance.accept([new_request("req_left")]))
    await asyncio.sleep(0.1)  # the statement is on its way
    calling.cancel()
    await asyncio.gather(calling, return_exceptions=True)
    relay.restore()

    await acceptance.accept([new_request("req_stayed")])
    await until(lambda: not acceptance.num_unsettled)
    states = {row["request_id"]: row["state"] for row in await rows.requests()}
    assert states == {"req_left": "ended", "req_stayed": "accepted"}
    assert [row["request_id"] for row in await rows.finals()] == ["req_left"]


async def test_a_mistake_of_ours_refuses_who_waits_and_nobody_after(
    acceptance: Acceptance, rows: Rows, monkeypatch: pytest.MonkeyPatch
) -> None:
    insert = acceptance._connection.insert

    async def insert_and_fail(requests: Sequence[NewRequest]) -> None:
        monkeypatch.undo()
        await insert(requests)
        raise KeyError("ours")

    monkeypatch.setattr(acceptance._connection, "insert", insert_and_fail)
    with pytest.raises(UnavailableError):
        await acceptance.accept([new_request("req_refused")])
    await acceptance.accept([new_request("req_after")])
    await until(lambda: not acceptance.num_unsettled)
    states = {row["request_id"]: row["state"] for row in await rows.requests()}
    assert states == {"req_refused": "ended", "req_after": "accepted"}
