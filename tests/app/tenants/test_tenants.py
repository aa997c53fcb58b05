"""Tenants over REST: made, listed, read by id or slug, deleted."""

from __future__ import annotations

import pytest

from app.auth import Principal, verify_key
from app.context import AppContext
from app.plans.limits import Kind
from tests.builders.operator import Operator


async def test_tenant_is_what_was_asked_for(operator: Operator) -> None:
    body = {
        "slug": "acme",
        "external_id": "crm-42",
        "metadata": {"plan": "gold"},
        "limits": {"concurrency": 3},
    }
    created = await operator.done("POST", "/tenants", json=body)

    assert created["id"].startswith("ten_") and created["object"] == "tenant"
    assert (created["slug"], created["external_id"]) == ("acme", "crm-42")
    assert created["metadata"] == {"plan": "gold"}
    assert created["limits"] == {"concurrency": 3}
    for reference in (created["id"], "acme"):
        assert await operator.done("GET", f"/tenants/{reference}") == created


@pytest.mark.parametrize("slug", ["", "Acme", "ten_x", "-acme", "a b", "base", "a" * 64, "é"])
async def test_bad_slug_gets_422(operator: Operator, slug: str) -> None:
    response = await operator.call("POST", "/tenants", json={"slug": slug})
    error = response.json()["error"]
    assert (response.status_code, error["code"], error["param"]) == (422, "name_invalid", "slug")


@pytest.mark.parametrize("body", [{"slug": "acme"}, {"slug": "other", "external_id": "crm-42"}])
async def test_slug_and_external_id_are_unique(operator: Operator, body: dict[str, str]) -> None:
    await operator.done("POST", "/tenants", json={"slug": "acme", "external_id": "crm-42"})
    response = await operator.call("POST", "/tenants", json=body)
    assert (response.status_code, response.json()["error"]["code"]) == (409, "name_conflict")


async def test_tenants_are_listed_in_order_page_by_page(operator: Operator) -> None:
    slugs = [f"tenant-{i}" for i in range(3)]
    ids = [(await operator.new_tenant(slug)).id for slug in slugs]

    first = await operator.done("GET", "/tenants", params={"limit": 2})
    second = await operator.done("GET", "/tenants", params={"limit": 2, "after": first["last_id"]})

    assert [row["id"] for row in first["data"] + second["data"]] == ids
    assert (first["has_more"], second["has_more"]) == (True, False)


@pytest.mark.parametrize("query", [{"limit": 0}, {"limit": 101}, {"limit": "x"}, {"after": "'"}])
async def test_bad_page_gets_400(operator: Operator, query: dict[str, object]) -> None:
    response = await operator.call("GET", "/tenants", params=query)
    assert response.status_code == 400
    assert response.json()["error"]["param"] in query


async def test_deleted_tenant_takes_all_it_owned_along(operator: Operator) -> None:
    await operator.new_tenant("acme")
    await operator.new_adapter("acme", "bot")

    deleted = await operator.done("DELETE", "/tenants/acme")

    assert deleted["deleted"] is True
    for path in ("/tenants/acme", "/tenants/acme/keys", "/tenants/acme/adapters"):
        assert (await operator.call("GET", path)).status_code == 404
    again = await operator.new_tenant("acme")
    assert again.id != deleted["id"]
    assert (await operator.done("GET", "/tenants/acme/adapters"))["data"] == []


async def test_limits_of_a_tenant_reach_its_principal(
    operator: Operator, context: AppContext
) -> None:
    acme = await operator.new_tenant("acme", limits={"concurrency": 3, "queue_depth": 7})
    globex = await operator.new_tenant("globex")

    limited, default = [await verify_key(context, tenant.secret) for tenant in (acme, globex)]

    assert limits_of(limited) == (3, 7)
    settings = context.settings
    assert limits_of(default) == (settings.tenant_concurrency, settings.tenant_queue_depth)


def limits_of(principal: Principal) -> tuple[int | None, int | None]:
    terms = principal.terms
    return terms.smallest(Kind.CONCURRENCY), terms.smallest(Kind.QUEUE_DEPTH)
