"""Every change leaves an event, which nobody can take back, and no secret is in it."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator

import httpx
import pytest
from sqlalchemy import text
from sqlalchemy.exc import DBAPIError, ProgrammingError

from app.audit.chain import audit_keys
from app.audit.service import verify_chain
from app.context import AppContext
from app.db import Database, tenant_scope
from tests.builders.operator import OPERATOR, Operator, Tenant
from tests.builders.tampering import draw_tampering
from tests.fixtures.servers import TestDatabase


@pytest.fixture
async def owner(database: TestDatabase) -> AsyncIterator[Database]:
    """The superuser, who may do what the application may not."""
    owner = Database(database.owner_url, pool_size=1)
    yield owner
    await owner.close()


@pytest.fixture
async def acme(operator: Operator) -> Tenant:
    return await operator.new_tenant("acme")


async def actions(operator: Operator, chain: str) -> list[str]:
    events = await operator.done("GET", f"/audit/{chain}", params={"limit": 100})
    return [event["action"] for event in sorted(events["data"], key=lambda event: event["seq"])]


async def test_a_change_is_recorded_with_who_and_what_was_before_and_after(
    operator: Operator, acme: Tenant
) -> None:
    body = {"metadata": {"plan": "gold"}}
    changed = await operator.call("PATCH", "/tenants/acme", json=body)
    events = await operator.done("GET", "/audit/acme")
    event = max(events["data"], key=lambda event: event["seq"])

    assert (event["actor"], event["action"], event["target"]) == (
        "operator",
        "tenant.changed",
        acme.id,
    )
    assert event["request_id"] == changed.headers["x-request-id"]
    assert event["before"]["metadata"] == {} and event["after"]["metadata"] == {"plan": "gold"}
    assert event["after"] == changed.json()


async def test_what_a_tenant_does_itself_is_recorded_with_its_key(
    operator: Operator, api: httpx.AsyncClient, acme: Tenant
) -> None:
    await api.post("/v1/adapters", headers=acme.headers, json={"name": "bot"})
    events = await operator.done("GET", f"/audit/{acme.id}")
    (event,) = [event for event in events["data"] if event["action"] == "adapter.created"]
    assert event["actor"] == acme.key_id and event["after"]["name"] == "bot"


async def test_no_secret_is_in_the_log(operator: Operator, acme: Tenant) -> None:
    rotated = await operator.done("POST", f"/tenants/acme/keys/{acme.key_id}/rotate")
    log = (await operator.call("GET", "/audit/acme")).text
    assert "key.rotated" in log
    for secret in (acme.secret, rotated["secret"]):
        assert secret not in log and secret[3:-6] not in log


async def test_a_change_that_fails_leaves_no_event(
    operator: Operator, admin: httpx.AsyncClient, acme: Tenant
) -> None:
    before = await actions(operator, "acme")
    refused = await admin.patch(
        "/admin/v1/tenants/acme", json={}, headers={**OPERATOR, "if-match": "0" * 32}
    )
    assert refused.json()["error"]["code"] == "etag_mismatch"
    taken = await operator.call("POST", "/tenants", json={"slug": "acme"})
    assert taken.status_code == 409
    assert await actions(operator, "acme") == before


async def test_the_log_outlives_its_tenant_and_its_slug_is_free_again(
    operator: Operator, acme: Tenant
) -> None:
    await operator.done("DELETE", "/tenants/acme")
    again = await operator.new_tenant("acme")

    assert (await actions(operator, acme.id))[-1] == "tenant.deleted"
    assert await actions(operator, "acme") == await actions(operator, again.id)
    fleet = await actions(operator, "fleet")
    assert fleet == ["tenant.created", "tenant.deleted", "tenant.created"]
    assert (await operator.call("GET", f"/audit/ten_{'0' * 26}")).status_code == 404


async def test_the_application_cannot_change_or_remove_what_is_recorded(
    context: AppContext, acme: Tenant
) -> None:
    statements = (
        "UPDATE audit_events SET actor = 'nobody'",
        "DELETE FROM audit_events",
        "TRUNCATE audit_events",
        "DELETE FROM audit_heads",
    )
    for statement in statements:
        async with context.database.session() as session:
            await tenant_scope(session, acme.id)
            with pytest.raises(ProgrammingError, match="permission denied"):
                await session.execute(text(statement))


async def test_not_even_the_owner_changes_it_without_disabling_the_trigger(
    owner: Database, acme: Tenant
) -> None:
    for statement in ("UPDATE audit_events SET actor = 'x'", "TRUNCATE audit_heads"):
        async with owner.session() as session:
            with pytest.raises(DBAPIError, match="append-only"):
                await session.execute(text(statement))


@pytest.mark.parametrize("order", ["asc", "desc"])
async def test_no_event_is_passed_over_where_hosts_clocks_differ(
    operator: Operator, owner: Database, acme: Tenant, order: str
) -> None:
    """A host whose clock is behind gives a later event an earlier id."""
    for _ in range(2):
        await operator.new_key("acme")
    async with owner.session() as session:
        await session.execute(text("SET LOCAL session_replication_role = replica"))
        change = text("UPDATE audit_events SET id = :id WHERE tenant_id = :tenant AND seq = 3")
        await session.execute(change, {"id": f"aud_{'0' * 26}", "tenant": acme.id})
        await session.commit()
    seqs: list[int] = []
    query: dict[str, str | int] = {"limit": 1, "order": order}
    has_more = True
    while has_more:
        page = await operator.done("GET", "/audit/acme", params=query)
        seqs += [event["seq"] for event in page["data"]]
        query["after"], has_more = page["last_id"], page["has_more"]
    assert seqs == sorted([1, 2, 3, 4], reverse=order == "desc")


async def test_changes_at_the_same_time_do_not_fork_the_chain(
    operator: Operator, acme: Tenant
) -> None:
    await asyncio.gather(*(operator.new_key("acme") for _ in range(8)))
    verified = await operator.done("GET", "/audit/acme/verification")
    assert verified["is_intact"] and verified["num_events"] == 10


async def test_verification_follows_every_chain_and_past_what_was_kept(
    operator: Operator, acme: Tenant
) -> None:
    heads = (await operator.done("GET", "/audit"))["data"]
    assert {head["tenant_id"] for head in heads} == {acme.id, "fleet"}
    for head in heads:
        kept = {"kept_seq": head["seq"], "kept_mac": head["mac"]}
        path = f"/audit/{head['tenant_id']}/verification"
        assert (await operator.done("GET", path, params=kept))["is_intact"]
        wrong = kept | {"kept_mac": "0" * 64}
        assert not (await operator.done("GET", path, params=wrong))["is_intact"]
    half = await operator.call("GET", "/audit/acme/verification", params={"kept_seq": 1})
    assert half.status_code == 400


async def test_a_tenant_whose_whole_chain_is_gone_is_missed(
    operator: Operator, owner: Database, acme: Tenant
) -> None:
    async with owner.session() as session:
        await session.execute(text("SET LOCAL session_replication_role = replica"))
        for table in ("audit_events", "audit_heads"):
            await session.execute(text(f"DELETE FROM {table} WHERE tenant_id <> 'fleet'"))
        await session.commit()
    fleet = await operator.done("GET", "/audit/fleet/verification")
    assert fleet["findings"] == [f"the chain of {acme.id} is gone"]


async def test_tamperings_are_found(
    operator: Operator, owner: Database, context: AppContext, acme: Tenant
) -> None:
    """A few of the many that `make billing` tries."""
    draw = random.Random(7)
    keys = audit_keys(context.settings.key_pepper.get_secret_value())
    async with owner.session() as session:
        assert not (await verify_chain(session, keys, acme.id)).findings
        for _ in range(40):
            tampering = draw_tampering(draw, acme.id, 2)
            await tampering.apply(session)
            assert (await verify_chain(session, keys, acme.id)).findings, tampering
            await session.rollback()
        assert not (await verify_chain(session, keys, acme.id)).findings


async def test_another_tenants_events_are_not_to_be_seen(
    context: AppContext, operator: Operator, acme: Tenant
) -> None:
    globex = await operator.new_tenant("globex")
    async with context.database.session() as session:
        await tenant_scope(session, acme.id)
        rows = await session.scalars(text("SELECT DISTINCT tenant_id FROM audit_events"))
        assert list(rows) == [acme.id]
        insert = text("INSERT INTO audit_heads (tenant_id, seq, mac, seal) VALUES (:id, 9, '', '')")
        with pytest.raises(ProgrammingError, match="row-level security"):
            await session.execute(insert, {"id": globex.id + "x"})
