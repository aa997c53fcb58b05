"""Plans and limits over REST: what is set is in force at the next request, and is in the log."""

from __future__ import annotations

import asyncio
from typing import Any

import httpx
import pytest

from app.auth import verify_key
from app.context import AppContext
from app.plans.limits import Kind
from tests.builders.held_rows import answered_after
from tests.builders.operator import OPERATOR, Operator, Tenant
from tests.fixtures.servers import TestDatabase


@pytest.fixture
async def acme(operator: Operator) -> Tenant:
    return await operator.new_tenant("acme")


async def new_plan(operator: Operator, name: str = "gold", **fields: Any) -> dict[str, Any]:
    return await operator.done("POST", "/plans", json={"name": name, **fields})


def in_force(body: dict[str, Any]) -> dict[str, tuple[int, str]]:
    return {
        each["kind"]: (each["limit"], each["source"])
        for each in body["in_force"]
        if each["mode"] == "hard"
    }


async def test_a_plan_is_made_read_listed_replaced_and_removed(operator: Operator) -> None:
    made = await new_plan(operator, limits={"tokens_per_day": 5}, weight=2.0)
    assert made["id"].startswith("pln_") and made["weight"] == 2.0
    assert await operator.done("GET", "/plans/gold") == made
    assert (await operator.done("GET", "/plans"))["data"] == [made]

    changed = await operator.done("PUT", "/plans/gold", json={"limits": {"concurrency": None}})
    assert (changed["limits"], changed["weight"]) == ({"concurrency": None}, None)

    assert (await operator.done("DELETE", "/plans/gold"))["deleted"] is True
    assert (await operator.call("GET", "/plans/gold")).status_code == 404


BAD_PLANS: list[tuple[dict[str, Any], int, str]] = [
    ({"name": "Gold"}, 422, "name_invalid"),
    ({"name": "gold"}, 409, "name_conflict"),
    ({"name": "x", "limits": {"concurrency": -1}}, 400, "invalid_value"),
    ({"name": "x", "limits": {"rpm": 1}}, 400, "unknown_parameter"),
    ({"name": "x", "weight": 0}, 400, "invalid_value"),
    ({"name": "x", "reserved_share": 1.5}, 400, "invalid_value"),
]


async def test_bad_plans_are_refused(operator: Operator) -> None:
    await new_plan(operator)
    for body, status, code in BAD_PLANS:
        response = await operator.call("POST", "/plans", json=body)
        assert (response.status_code, response.json()["error"]["code"]) == (status, code)


async def test_a_plan_that_a_tenant_is_on_stays(operator: Operator, acme: Tenant) -> None:
    await new_plan(operator)
    await operator.done("PUT", "/tenants/acme/plan", json={"plan": "gold"})
    response = await operator.call("DELETE", "/plans/gold")
    assert (response.status_code, response.json()["error"]["code"]) == (409, "plan_in_use")
    await operator.done("PUT", "/tenants/acme/plan", json={"plan": None})
    await operator.done("DELETE", "/plans/gold")


async def test_a_tenant_has_its_plans_terms_and_its_own_above_them(
    operator: Operator, acme: Tenant, context: AppContext
) -> None:
    await new_plan(
        operator,
        limits={"tokens_per_minute": 100, "concurrency": 7},
        weight=3,
        allows_priority=True,
    )
    await operator.done("PUT", "/tenants/acme/plan", json={"plan": "gold"})
    await operator.done(
        "PUT", "/tenants/acme/limits", json={"limits": {"concurrency": None}, "weight": 4}
    )

    shown = await operator.done("GET", "/tenants/acme/limits")
    assert (shown["plan"], shown["weight"], shown["allows_priority"]) == ("gold", 4.0, True)
    assert in_force(shown) == {
        "tokens_per_minute": (100, "plan:gold"),
        "queue_depth": (context.settings.tenant_queue_depth, "default"),
    }
    principal = await verify_key(context, acme.secret)
    assert principal.terms.smallest(Kind.TOKENS_PER_MINUTE) == 100
    assert (principal.weight, principal.allows_priority) == (4.0, True)

    await operator.done("PUT", "/plans/gold", json={"limits": {"tokens_per_minute": 50}})
    principal = await verify_key(context, acme.secret)
    assert principal.terms.smallest(Kind.TOKENS_PER_MINUTE) == 50


async def test_a_keys_and_an_adapters_limits_are_their_own(
    operator: Operator, acme: Tenant, context: AppContext
) -> None:
    await operator.new_adapter("acme", "bot")
    for path in (f"/tenants/acme/keys/{acme.key_id}", "/tenants/acme/adapters/bot"):
        body = {"requests_per_minute": 5, "dry_run": {"tokens_per_day": 9}}
        put = await operator.done("PUT", f"{path}/limits", json=body)
        assert put == await operator.done("GET", f"{path}/limits")
        assert put["limits"] == body
        assert [each["mode"] for each in put["in_force"]] == ["hard", "dry_run"]
        response = await operator.call("PUT", f"{path}/limits", json={"queue_depth": 1})
        assert response.json()["error"]["code"] == "unknown_parameter"
    principal = await verify_key(context, acme.secret)
    assert principal.terms.smallest(Kind.REQUESTS_PER_MINUTE) == 5


async def test_neither_rotation_nor_a_key_that_makes_keys_gives_a_fresh_start(
    operator: Operator, api: httpx.AsyncClient, context: AppContext
) -> None:
    await operator.new_tenant("globex")
    old = await operator.new_key("globex", scopes=["inference", "keys:write"])
    path = f"/tenants/globex/keys/{old['id']}"
    await operator.done("PUT", f"{path}/limits", json={"tokens_per_day": 5})
    new = await operator.done("POST", f"{path}/rotate")
    made = await api.post(
        "/v1/keys", json={"scopes": ["inference"]}, headers={"x-api-key": new["secret"]}
    )
    assert made.status_code == 201, made.text
    await operator.done("PUT", f"/tenants/globex/keys/{new['id']}/limits", json={"concurrency": 2})
    for secret in (old["secret"], new["secret"], made.json()["secret"]):
        principal = await verify_key(context, secret)
        (limit,) = [each for each in principal.terms.limits if each.scope == "key"]
        assert (limit.kind, limit.limit, limit.subject_id) == (Kind.CONCURRENCY, 2, old["id"])
        assert principal.terms.counted_key_id == old["id"]


async def test_a_dry_run_shows_what_would_be_and_changes_nothing(
    operator: Operator, acme: Tenant
) -> None:
    before = await operator.done("GET", "/tenants/acme/limits")
    await new_plan(operator, limits={"concurrency": 2})
    for path, body in (
        ("/tenants/acme/limits", {"limits": {"concurrency": 1}}),
        ("/tenants/acme/plan", {"plan": "gold"}),
    ):
        shown = await operator.done("PUT", path, params={"dry_run": 1}, json=body)
        assert in_force(shown)["concurrency"][0] in (1, 2)
        assert await operator.done("GET", "/tenants/acme/limits") == before


async def test_every_change_of_a_limit_is_in_the_audit_log(
    operator: Operator, acme: Tenant
) -> None:
    await new_plan(operator)
    await operator.done("PUT", "/tenants/acme/plan", json={"plan": "gold"})
    await operator.done("PUT", "/tenants/acme/limits", json={"limits": {"concurrency": 3}})
    path = f"/tenants/acme/keys/{acme.key_id}/limits"
    await operator.done("PUT", path, json={"concurrency": 1})
    log = await operator.done("GET", f"/audit/{acme.id}")
    actions = [event["action"] for event in log["data"]]
    assert actions.count("tenant.limits_changed") == 2
    assert actions.count("key.limits_changed") == 1


async def test_each_key_whose_limits_change_with_another_ones_is_in_the_audit_log(
    operator: Operator, acme: Tenant
) -> None:
    rotated = await operator.done("POST", f"/tenants/acme/keys/{acme.key_id}/rotate")
    alone = await operator.new_key("acme")
    path = f"/tenants/acme/keys/{rotated['id']}/limits"
    await operator.done("PUT", path, json={"concurrency": 1})
    await operator.done("PUT", path, json={"concurrency": 2})
    log = (await operator.done("GET", "/audit/acme", params={"limit": 100}))["data"]
    changes = [
        (event["target"], event["before"], event["after"])
        for event in log
        if event["action"] == "key.limits_changed"
    ]
    one, two = {"concurrency": 1}, {"concurrency": 2}
    assert changes == [
        (key_id, before, after)
        for before, after in (({}, one), (one, two))
        for key_id in sorted((acme.key_id, rotated["id"]))
    ]
    assert alone["id"] not in [target for target, _, _ in changes]  # it is counted by itself


@pytest.mark.parametrize(
    ("path", "body"), [("limits", {"limits": {"concurrency": 1}}), ("plan", {"plan": "gold"})]
)
async def test_the_terms_of_a_tenant_that_is_deleted_meanwhile_are_not_found(
    operator: Operator, acme: Tenant, database: TestDatabase, path: str, body: dict[str, Any]
) -> None:
    await new_plan(operator)
    await operator.done("PUT", f"/tenants/acme/{path}", json=body)  # the control
    answer = await answered_after(
        database.owner_url,
        "DELETE FROM tenants WHERE id = :id",
        operator.call("PUT", f"/tenants/acme/{path}", json=body),
        id=acme.id,
    )
    assert (answer.status_code, answer.json()["error"]["param"]) == (404, "tenant")


async def test_no_tenant_reaches_plans_or_limits(api: httpx.AsyncClient, acme: Tenant) -> None:
    for path in ("/v1/plans", "/v1/limits", "/v1/explain/req_x"):
        assert (await api.get(path, headers=acme.headers)).status_code == 404


@pytest.mark.parametrize("subject", ["key", "adapter"])
async def test_a_keys_and_an_adapters_limits_change_only_from_the_state_that_was_read(
    operator: Operator, acme: Tenant, admin: httpx.AsyncClient, subject: str
) -> None:
    await operator.new_adapter("acme", "bot")
    own = f"keys/{acme.key_id}" if subject == "key" else "adapters/bot"
    path = f"/tenants/acme/{own}/limits"
    read = await operator.done("GET", path)

    async def put(limit: int, if_match: str) -> httpx.Response:
        headers = {**OPERATOR, "if-match": if_match}
        body = {"requests_per_minute": limit}
        return await admin.put(f"/admin/v1{path}", json=body, headers=headers)

    answers = await asyncio.gather(*(put(limit, f'"{read["etag"]}"') for limit in (5, 6, 7)))
    (changed,) = [each.json() for each in answers if each.status_code == 200]
    refused = [each.json()["error"] for each in answers if each.status_code == 412]
    assert [each["code"] for each in refused] == ["etag_mismatch"] * 2
    assert {each["etag"] for each in refused} == {changed["etag"]} != {read["etag"]}
    assert await operator.done("GET", path) == changed
    again = await put(8, "*")  # whatever it is, or nothing said: as it always was
    assert again.status_code == 200 and again.json()["etag"] != changed["etag"]
    assert (await put(9, again.json()["etag"])).status_code == 200
    await operator.done("PUT", path, json={})
    assert await operator.done("GET", path) == read


async def test_keys_that_share_their_limits_change_in_turn(operator: Operator) -> None:
    """Two changes at once, of two keys that are counted as one: neither waits for the other."""
    tenant = await operator.new_tenant("globex")
    path = f"/tenants/globex/keys/{tenant.key_id}"
    rotated = await operator.done("POST", f"{path}/rotate")
    paths = [f"/tenants/globex/keys/{each}/limits" for each in (tenant.key_id, rotated["id"])]
    for limit in range(1, 5):
        bodies = [{"requests_per_minute": limit}, {"tokens_per_day": limit}]
        changes = zip(paths, bodies, strict=True)
        await asyncio.gather(*(operator.done("PUT", each, json=body) for each, body in changes))
        shown = [await operator.done("GET", each) for each in paths]
        assert shown[0] == shown[1] and shown[0]["limits"] in bodies
