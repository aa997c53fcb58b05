"""A key opens its own tenant's door, or none."""

from __future__ import annotations

import httpx
import pytest
from fastapi import FastAPI
from sqlalchemy import text

from app.api import create_app
from app.auth import Principal, hash_key
from app.context import AppContext, open_context
from app.db import Database
from app.settings import Settings
from tests.builders.clock import Clock
from tests.builders.operator import ADMIN_KEY, Operator
from tests.fixtures.servers import TestDatabase

IDS = ("x-request-id", "request-id")


def code(response: httpx.Response) -> tuple[int, str]:
    return response.status_code, response.json()["error"]["code"]


def without_ids(response: httpx.Response) -> tuple[int, bytes, list[tuple[str, str]]]:
    headers = [(name, value) for name, value in response.headers.items() if name not in IDS]
    return response.status_code, response.content, headers


async def test_key_is_accepted_as_bearer_and_as_x_api_key(
    operator: Operator, api: httpx.AsyncClient
) -> None:
    acme = await operator.new_tenant("acme")

    for headers in (
        {"authorization": f"Bearer {acme.secret}"},
        {"authorization": f"bearer {acme.secret}"},
        {"x-api-key": acme.secret},
    ):
        assert (await api.get("/v1/models", headers=headers)).status_code == 200


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"authorization": ""},
        {"authorization": "Bearer"},
        {"authorization": "Bearer "},
        {"authorization": "Basic dXNlcjpwYXNz"},
        {"authorization": "Bearer tf_wrong"},
        {"authorization": b"Bearer \xff\xfe"},
        {"authorization": "Bearer " + "x" * 10_000},
        {"authorization": f"Bearer {ADMIN_KEY}"},
        {"x-api-key": "' OR 1=1 --"},
    ],
)
async def test_no_key_and_a_wrong_key_get_401(
    operator: Operator, api: httpx.AsyncClient, headers: dict[str, str]
) -> None:
    await operator.new_tenant("acme")

    response = await api.get("/v1/models", headers=headers)

    assert code(response) == (401, "invalid_api_key")
    assert response.headers["www-authenticate"] == "Bearer"


async def test_key_that_shares_a_long_prefix_is_refused(
    operator: Operator, api: httpx.AsyncClient
) -> None:
    acme = await operator.new_tenant("acme")

    almost = acme.secret[:-1] + ("A" if acme.secret[-1] != "A" else "B")
    response = await api.get("/v1/models", headers={"x-api-key": almost})

    assert code(response) == (401, "invalid_api_key")


async def test_disabled_key_is_refused_at_once(operator: Operator, api: httpx.AsyncClient) -> None:
    acme = await operator.new_tenant("acme")
    assert (await api.get("/v1/models", headers=acme.headers)).status_code == 200

    await operator.done("POST", f"/tenants/acme/keys/{acme.key_id}/disable")

    assert code(await api.get("/v1/models", headers=acme.headers)) == (401, "key_disabled")


async def test_expired_key_is_refused(
    operator: Operator, api: httpx.AsyncClient, clock: Clock
) -> None:
    await operator.new_tenant("acme")
    expires_at = int(clock.now().timestamp()) + 60
    key = await operator.new_key("acme", expires_at=expires_at)
    headers = {"x-api-key": key["secret"]}
    assert (await api.get("/v1/models", headers=headers)).status_code == 200

    clock.advance(61)

    assert code(await api.get("/v1/models", headers=headers)) == (401, "key_expired")


async def test_suspended_tenant_is_refused_until_it_is_resumed(
    operator: Operator, api: httpx.AsyncClient
) -> None:
    acme = await operator.new_tenant("acme")

    await operator.done("POST", "/tenants/acme/suspend")
    for path in ("/v1/models", "/v1/adapters", "/t/acme/v1/models"):
        response = await api.get(path, headers=acme.headers)
        assert code(response) == (403, "tenant_suspended"), path
    await operator.done("POST", "/tenants/acme/resume")

    assert (await api.get("/v1/models", headers=acme.headers)).status_code == 200


async def test_deleted_key_and_deleted_tenant_are_refused(
    operator: Operator, api: httpx.AsyncClient
) -> None:
    acme, globex = await operator.new_tenant("acme"), await operator.new_tenant("globex")

    await operator.done("DELETE", f"/tenants/acme/keys/{acme.key_id}")
    await operator.done("DELETE", "/tenants/globex")

    for tenant in (acme, globex):
        response = await api.get("/v1/models", headers=tenant.headers)
        assert code(response) == (401, "invalid_api_key")


async def test_missing_scope_gets_403(operator: Operator, api: httpx.AsyncClient) -> None:
    acme = await operator.new_tenant("acme", scopes=["adapters:write"])
    globex = await operator.new_tenant("globex", scopes=["inference"])

    models = await api.get("/v1/models", headers=acme.headers)
    adapters = await api.get("/v1/adapters", headers=globex.headers)

    assert code(models) == code(adapters) == (403, "insufficient_permissions")


async def test_tenant_path_serves_its_own_key_by_slug_and_id(
    operator: Operator, api: httpx.AsyncClient
) -> None:
    acme = await operator.new_tenant("acme")

    for reference in (acme.slug, acme.id):
        response = await api.get(f"/t/{reference}/v1/models", headers=acme.headers)
        assert response.status_code == 200


async def test_foreign_tenant_path_is_the_same_bytes_as_an_unknown_one(
    operator: Operator, api: httpx.AsyncClient
) -> None:
    acme, globex = await operator.new_tenant("acme"), await operator.new_tenant("globex")

    answers = [
        without_ids(await api.get(f"/t/{tenant}/v1/models", headers=acme.headers))
        for tenant in (globex.slug, globex.id, "nobody")
    ]

    assert answers[0][0] == 404
    assert answers[0] == answers[1] == answers[2]


async def test_nothing_stored_in_the_registry_opens_it(
    operator: Operator, api: httpx.AsyncClient, database: TestDatabase
) -> None:
    await operator.new_tenant("acme")
    owner = Database(database.owner_url)
    async with owner.session() as session:
        row = (await session.execute(text("SELECT * FROM api_keys"))).one()
    await owner.close()

    for value in row:
        response = await api.get("/v1/models", headers={"x-api-key": str(value)})
        assert code(response) == (401, "invalid_api_key")


async def test_another_pepper_refuses_every_key(
    operator: Operator, settings: Settings, tenant_app: FastAPI
) -> None:
    acme = await operator.new_tenant("acme")
    other = settings.model_copy(update={"key_pepper": type(settings.key_pepper)("another-pepper")})
    async with open_context(other) as context:
        transport = httpx.ASGITransport(create_app(context))
        async with httpx.AsyncClient(transport=transport, base_url="http://t") as client:
            response = await client.get("/v1/models", headers=acme.headers)

    assert code(response) == (401, "invalid_api_key")


async def test_registry_that_is_down_gets_503_and_never_a_principal(
    operator: Operator, settings: Settings
) -> None:
    acme = await operator.new_tenant("acme")
    down = settings.model_copy(
        update={"database_url": "postgresql+asyncpg://tenfold_app:x@127.0.0.1:1/none"}
    )
    async with open_context(down) as context:
        transport = httpx.ASGITransport(create_app(context))
        async with httpx.AsyncClient(transport=transport, base_url="http://t") as client:
            responses = [
                await client.get("/v1/models", headers=acme.headers),
                await client.get("/v1/adapters", headers=acme.headers),
            ]

    for response in responses:
        assert code(response) == (503, "dependency_unavailable")
        assert int(response.headers["retry-after"]) >= 1
        assert "127.0.0.1" not in response.text


async def test_missing_table_during_authentication_is_no_success(
    operator: Operator, api: httpx.AsyncClient, database: TestDatabase
) -> None:
    acme = await operator.new_tenant("acme")
    owner = Database(database.owner_url)
    async with owner.session() as session:
        await session.execute(text("ALTER TABLE api_keys RENAME TO gone"))
        await session.commit()
    await owner.close()

    response = await api.get("/v1/models", headers=acme.headers)

    assert response.status_code in (500, 503)
    assert "gone" not in response.text and "api_keys" not in response.text


async def test_without_an_admin_key_the_admin_api_refuses_everyone(
    operator: Operator, context: AppContext, admin: httpx.AsyncClient
) -> None:
    for key in ("", "None", "wrong", "x" * 300):
        response = await admin.get("/admin/v1/tenants", headers={"x-api-key": key})
        assert code(response) == (401, "invalid_api_key")


async def test_a_tenants_key_does_not_open_the_admin_api(
    operator: Operator, admin: httpx.AsyncClient
) -> None:
    acme = await operator.new_tenant("acme")
    response = await admin.get("/admin/v1/tenants", headers=acme.headers)
    assert code(response) == (401, "invalid_api_key")


def test_principal_has_no_defaults() -> None:
    with pytest.raises(TypeError):
        Principal()  # type: ignore[call-arg]


def test_hash_covers_the_whole_key() -> None:
    prefix = "x" * 60
    assert hash_key("pepper", prefix + "a") != hash_key("pepper", prefix + "b")
    assert hash_key("pepper", prefix) != hash_key("another", prefix)
