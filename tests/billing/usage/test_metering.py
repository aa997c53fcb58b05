"""A final event says for whom, by which key and on what; and what changes is noted once."""

from __future__ import annotations

from dataclasses import replace

import msgspec
from sqlalchemy import text

from app.db import tenant_scope
from app.usage.jobs import UsageJobs
from engine.messages import UsageAuthor
from tests.builders.ledger import Ledger
from tests.builders.usage import make_record, new_request

OUTBOX = "SELECT * FROM usage_outbox ORDER BY request_id"
STALE = "SELECT * FROM usage_stale_hours ORDER BY tenant_id, hour"
ACCEPTED = (
    "accepted_at",
    "key_id",
    "adapter_id",
    "adapter_version_id",
    "base_model_id",
    "service_tier",
    "is_first_choice",
)


async def test_a_final_event_repeats_its_requests_acceptance(ledger: Ledger) -> None:
    request = replace(
        new_request("req_a"),
        adapter_id="adp_a",
        base_model_id="base",
        service_tier="flex",
        is_first_choice=False,
    )
    record = msgspec.structs.replace(make_record("req_a"), queue_ms=7, adapter_load_ms=41)
    await ledger.accept(request)
    await ledger.write(make_record("req_a", generated=64, reason=None), record)

    [final] = await ledger.finals()
    assert {name: final[name] for name in ACCEPTED} == {
        name: getattr(request, name) for name in ACCEPTED
    }
    assert (final["queue_ms"], final["adapter_load_ms"]) == (7, 41)
    [checkpoint] = await ledger.rows("SELECT * FROM request_events WHERE event = 'checkpoint'")
    assert checkpoint["accepted_at"] is None and checkpoint["key_id"] is None


async def test_what_is_said_again_is_noted_once_and_what_changes_again(ledger: Ledger) -> None:
    await ledger.accept(new_request("req_a"))
    for _ in range(3):
        await ledger.write(make_record("req_a", generated=10))
    [noted] = await ledger.rows(OUTBOX)
    assert noted["revision"] == 1

    await ledger.write(make_record("req_a", generated=12, reason="length", epoch=2))
    [noted] = await ledger.rows(OUTBOX)
    assert (noted["revision"], noted["delivered_revision"]) == (2, 0)
    [final] = await ledger.finals()
    assert (final["num_generated_tokens"], final["key_id"]) == (12, "key_a")
    assert len(await ledger.rows(STALE)) == 1


async def test_a_checkpoint_alone_is_on_no_bill(ledger: Ledger) -> None:
    await ledger.accept(new_request("req_a"))
    await ledger.write(make_record("req_a", generated=64, reason=None))
    assert await ledger.rows(OUTBOX) == await ledger.rows(STALE) == []


async def test_reasoning_is_that_of_the_record_whose_counts_hold(ledger: Ledger) -> None:
    await ledger.accept(new_request("req_a"))
    for author, generated, reasoning in ((UsageAuthor.API, 9, 5), (UsageAuthor.ENGINE, 10, 6)):
        told = make_record("req_a", author=author, generated=generated)
        await ledger.write(msgspec.structs.replace(told, num_reasoning_tokens=reasoning))
    [final] = await ledger.finals()
    assert (final["num_generated_tokens"], final["num_reasoning_tokens"]) == (10, 6)


async def test_what_acceptance_settled_is_dated_by_a_worker(
    ledger: Ledger, usage_jobs: UsageJobs
) -> None:
    request = new_request("req_a")
    await ledger.settle(request)
    assert await ledger.rows(OUTBOX) == []

    assert await usage_jobs.date() == 1
    assert await usage_jobs.date() == 0

    [final] = await ledger.finals()
    assert (final["accepted_at"], final["key_id"]) == (request.accepted_at, "key_a")
    assert len(await ledger.rows(OUTBOX)) == len(await ledger.rows(STALE)) == 1


async def test_what_nobody_accepted_is_dated_by_when_it_was_recorded(
    ledger: Ledger, usage_jobs: UsageJobs
) -> None:
    await ledger.write(make_record("req_a"))
    assert await usage_jobs.date() == 1
    [final] = await ledger.finals()
    assert final["accepted_at"] == final["recorded_at"] and final["key_id"] is None


async def test_a_tenant_sees_its_own_usage_and_changes_none(ledger: Ledger) -> None:
    for tenant_id in ("ten_a", "ten_b"):
        await ledger.serve(new_request(tenant_id=tenant_id))
    async with ledger.database.session() as session:
        await tenant_scope(session, "ten_a")
        for table in ("usage_ledger", "usage_stale_hours", "usage_outbox"):
            seen = await session.scalars(text(f"SELECT tenant_id FROM {table}"))
            assert list(seen) == ["ten_a"]
        removed = await session.execute(text("DELETE FROM usage_stale_hours"))
        assert removed.rowcount == 0
