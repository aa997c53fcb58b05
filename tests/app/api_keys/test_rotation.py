"""A key is replaced without a moment in which neither works."""

from __future__ import annotations

import httpx

from tests.builders.clock import Clock
from tests.builders.operator import Operator

HOUR_S = 3600


async def status(api: httpx.AsyncClient, secret: str) -> tuple[int, str | None]:
    response = await api.get("/v1/models", headers={"x-api-key": secret})
    return response.status_code, None if response.is_success else response.json()["error"]["code"]


async def test_both_keys_work_in_the_overlap_and_only_the_new_one_after_it(
    operator: Operator, api: httpx.AsyncClient, clock: Clock
) -> None:
    acme = await operator.new_tenant("acme")
    path = f"/tenants/acme/keys/{acme.key_id}"
    new = await operator.done("POST", f"{path}/rotate", json={"overlap_s": HOUR_S})

    clock.advance(HOUR_S - 1)
    assert await status(api, acme.secret) == await status(api, new["secret"]) == (200, None)
    clock.advance(2)
    assert await status(api, acme.secret) == (401, "key_expired")
    assert await status(api, new["secret"]) == (200, None)
    old = await operator.done("GET", path)
    assert old["replaced_by"] == new["id"]


async def test_the_new_key_may_do_what_the_old_one_might(operator: Operator, clock: Clock) -> None:
    await operator.new_tenant("acme")
    end = int(clock.now().timestamp()) + 10 * HOUR_S
    wanted = {
        "scopes": ["inference"],
        "allowed_models": ["bot"],
        "expires_at": end,
        "metadata": {"team": "support"},
    }
    old = await operator.new_key("acme", **wanted, name="ci")
    new = await operator.done("POST", f"/tenants/acme/keys/{old['id']}/rotate")

    assert {field: new[field] for field in ("name", *wanted)} == {"name": "ci", **wanted}
    assert new["secret"] != old["secret"] and new["id"] != old["id"]
    after = await operator.done("GET", f"/tenants/acme/keys/{old['id']}")
    assert after["expires_at"] == end  # the default overlap is longer, and lengthens no life


async def test_without_an_overlap_the_old_key_ends_at_once_and_none_is_rotated_twice(
    operator: Operator, api: httpx.AsyncClient
) -> None:
    acme = await operator.new_tenant("acme")
    path = f"/tenants/acme/keys/{acme.key_id}"
    new = await operator.done("POST", f"{path}/rotate", json={"overlap_s": 0})
    assert await status(api, acme.secret) == (401, "key_expired")
    assert await status(api, new["secret"]) == (200, None)
    await operator.done("POST", f"/tenants/acme/keys/{new['id']}/disable")

    for key_id in (acme.key_id, new["id"]):
        response = await operator.call("POST", f"/tenants/acme/keys/{key_id}/rotate")
        error = response.json()["error"]
        assert (response.status_code, error["code"]) == (409, "key_not_active")
        assert response.headers["x-should-retry"] == "false"
