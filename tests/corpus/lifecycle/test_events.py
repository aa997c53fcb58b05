"""One feed tells an operator's own systems everything that changed, once and in order."""

from __future__ import annotations

import asyncio
from typing import Any

import httpx
import pytest

from app.audit.chain import audit_keys
from app.audit.trail import AuditTrail
from app.context import AppContext
from app.db import tenant_scope
from tests.builders.operator import Operator, Tenant
from tests.corpus.lifecycle.conftest import code


async def feed(operator: Operator, after: int = 0, limit: int = 1000) -> dict[str, Any]:
    return await operator.done("GET", "/events", params={"after": after, "limit": limit})


def trail_at(context: AppContext) -> AuditTrail:
    key = audit_keys(context.settings.key_pepper.get_secret_value())[0]
    return AuditTrail(key, actor="operator", request_id="req", at=context.now())


async def test_the_feed_has_every_change_of_every_tenant_in_order_and_once(
    operator: Operator, acme: Tenant
) -> None:
    globex = await operator.new_tenant("globex")
    await operator.new_adapter("globex", "bot")
    whole = await feed(operator)
    told = [(each["type"], each["tenant_id"]) for each in whole["data"]]
    assert told == [
        ("tenant.created", "fleet"),
        ("tenant.created", acme.id),
        ("key.created", acme.id),
        ("adapter.created", acme.id),
        ("tenant.created", "fleet"),
        ("tenant.created", globex.id),
        ("key.created", globex.id),
        ("adapter.created", globex.id),
    ]
    pages: list[int] = []
    after = 0
    while True:
        page = await feed(operator, after, 3)
        pages += [each["seq"] for each in page["data"]]
        after = page["next"]
        if not page["has_more"]:
            break
    assert pages == [each["seq"] for each in whole["data"]] == sorted(set(pages))
    assert await feed(operator, after) == {
        "object": "list",
        "data": [],
        "has_more": False,
        "next": after,
    }


async def test_an_event_that_is_committed_late_is_not_missed(
    operator: Operator, context: AppContext, acme: Tenant
) -> None:
    """Written first and committed last, it comes after what was read meanwhile."""
    globex = await operator.new_tenant("globex")
    after = (await feed(operator))["next"]
    async with context.database.session() as slow:
        await tenant_scope(slow, acme.id)
        await trail_at(context).record(slow, acme.id, "thing.slow", "x")
        async with context.database.session() as quick:
            await tenant_scope(quick, globex.id)
            await trail_at(context).record(quick, globex.id, "thing.quick", "x")
            await asyncio.wait_for(quick.commit(), 5)
        first = await feed(operator, after)
        await slow.commit()
    second = await feed(operator, first["next"])
    assert [each["type"] for each in first["data"]] == ["thing.quick"]
    assert [each["type"] for each in second["data"]] == ["thing.slow"]


async def test_what_was_rolled_back_is_not_in_the_feed(
    operator: Operator, context: AppContext, acme: Tenant
) -> None:
    before = await feed(operator)
    async with context.database.session() as session:
        await tenant_scope(session, acme.id)
        await trail_at(context).record(session, acme.id, "thing.undone", "x")
        await session.rollback()
    assert await feed(operator) == before


async def test_changes_of_many_tenants_at_once_do_not_wait_for_each_other_for_ever(
    operator: Operator, acme: Tenant
) -> None:
    """Deleting writes into two chains: each holds what the other might want."""
    tenants = [await operator.new_tenant(f"t{number}") for number in range(8)]
    async with asyncio.timeout(30):
        answers = await asyncio.gather(
            *(operator.call("DELETE", f"/tenants/{each.id}") for each in tenants),
            *(operator.call("POST", f"/tenants/{acme.id}/keys", json={}) for _ in range(8)),
        )
    assert all(each.is_success for each in answers)
    seqs = [each["seq"] for each in (await feed(operator))["data"]]
    assert seqs == sorted(set(seqs))


async def test_tenants_do_not_read_the_feed(
    admin: httpx.AsyncClient, api: httpx.AsyncClient, acme: Tenant
) -> None:
    refused = await admin.get("/admin/v1/events", headers=acme.headers)
    assert code(refused) == (401, "invalid_api_key")
    assert (await api.get("/v1/events", headers=acme.headers)).status_code == 404


@pytest.mark.parametrize("query", [{"after": -1}, {"after": "x"}, {"limit": 0}, {"limit": 1001}])
async def test_a_cursor_that_is_none_gets_400(operator: Operator, query: dict[str, Any]) -> None:
    assert (await operator.call("GET", "/events", params=query)).status_code == 400
