"""Keys over REST: the secret is shown once, and is nowhere afterwards."""

from __future__ import annotations

import pytest
from sqlalchemy import text

from app.db import Database
from tests.builders.clock import Clock
from tests.builders.operator import Operator
from tests.fixtures.servers import TestDatabase

KEYS = "/tenants/acme/keys"


@pytest.fixture(autouse=True)
async def acme(operator: Operator) -> None:
    await operator.done("POST", "/tenants", json={"slug": "acme"})


async def test_secret_is_shown_once_and_not_stored(
    operator: Operator, database: TestDatabase
) -> None:
    created = await operator.done("POST", KEYS, json={"name": "ci"})
    secret = created["secret"]

    shown = [
        await operator.call("GET", KEYS),
        await operator.call("GET", f"{KEYS}/{created['id']}"),
        await operator.call("POST", f"{KEYS}/{created['id']}/disable"),
    ]
    assert all(secret not in response.text for response in shown)
    assert created["last4"] == secret[-4:] and len(secret) > 40
    owner = Database(database.owner_url)
    async with owner.session() as session:
        row = (await session.execute(text("SELECT * FROM api_keys"))).one()
    await owner.close()
    assert all(secret not in str(value) for value in row)


async def test_key_has_the_scope_inference_unless_told(operator: Operator) -> None:
    created = await operator.done("POST", KEYS, json={})
    assert created["scopes"] == ["inference"]
    both = await operator.done("POST", KEYS, json={"scopes": ["inference", "adapters:write"]})
    assert both["scopes"] == ["adapters:write", "inference"]


@pytest.mark.parametrize(
    ("body", "code", "param"),
    [
        ({"scopes": ["admin"]}, "invalid_value", "scopes[0]"),
        ({"scopes": []}, "invalid_value", "scopes"),
        ({"scopes": ["*"]}, "invalid_value", "scopes[0]"),
        ({"allowed_routes": ["/*"]}, "unknown_parameter", "allowed_routes"),
        ({"tenant_id": "ten_other"}, "unknown_parameter", "tenant_id"),
        ({"expires_at": 1}, "invalid_value", "expires_at"),
        ({"expires_at": 10**15}, "invalid_value", "expires_at"),
    ],
)
async def test_nothing_is_granted_that_does_not_exist(
    operator: Operator, body: dict[str, object], code: str, param: str
) -> None:
    response = await operator.call("POST", KEYS, json=body)
    error = response.json()["error"]
    assert (response.status_code, error["code"], error["param"]) == (400, code, param)


async def test_key_is_disabled_once_and_for_all(operator: Operator, clock: Clock) -> None:
    key = await operator.done("POST", KEYS, json={})
    first = await operator.done("POST", f"{KEYS}/{key['id']}/disable")
    clock.advance(60)
    second = await operator.done("POST", f"{KEYS}/{key['id']}/disable")
    assert first["disabled_at"] == second["disabled_at"] is not None


async def test_key_of_another_tenant_is_not_found(operator: Operator) -> None:
    globex = await operator.new_tenant("globex")
    for method, suffix in (("GET", ""), ("DELETE", ""), ("POST", "/disable")):
        foreign, absent = [
            await operator.call(method, f"{KEYS}/{key_id}{suffix}")
            for key_id in (globex.key_id, "key_" + "0" * 26)
        ]
        assert foreign.status_code == absent.status_code == 404
        assert foreign.content == absent.content
