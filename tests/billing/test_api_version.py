"""A key is pinned to the version of the API of the day on which it was made.

A request may name another one.
"""

from __future__ import annotations

import httpx
import pytest
from fastapi import FastAPI
from openai import AsyncOpenAI
from sqlalchemy import update

from app.api_version import NEWEST
from app.db import Database
from app.openapi.document import admin_document, operations_of, tenant_document
from app.tables import ApiKey
from tests.builders.operator import OPERATOR, Operator, Tenant
from tests.builders.server import serving
from tests.fixtures.servers import TestDatabase

OLDER = "2020-01-01"


@pytest.fixture
async def acme(operator: Operator) -> Tenant:
    return await operator.new_tenant("acme", scopes=("inference", "keys:write"))


async def pin(database: TestDatabase, key_id: str) -> None:
    """As if the key had been made when there was an older version."""
    owner = Database(database.owner_url, pool_size=1)
    async with owner.session() as session:
        await session.execute(update(ApiKey).where(ApiKey.id == key_id).values(api_version=OLDER))
        await session.commit()
    await owner.close()


async def test_a_new_key_is_pinned_to_the_newest_version_and_a_rotated_one_to_its_forerunners(
    operator: Operator, acme: Tenant, database: TestDatabase
) -> None:
    key = await operator.new_key("acme")
    assert key["api_version"] == NEWEST
    await pin(database, key["id"])
    rotated = await operator.done("POST", f"/tenants/acme/keys/{key['id']}/rotate")
    assert rotated["api_version"] == OLDER


async def test_an_answer_is_of_the_keys_version_unless_the_request_names_one(
    api: httpx.AsyncClient, acme: Tenant, database: TestDatabase
) -> None:
    first = await api.get("/v1/models", headers=acme.headers)
    assert first.headers["api-version"] == NEWEST
    await pin(database, acme.key_id)
    for path in ("/v1/models", f"/t/{acme.slug}/v1/models", "/v1/adapters"):  # the last is refused
        answer = await api.get(path, headers=acme.headers)
        assert answer.headers["api-version"] == OLDER, path
    named = await api.get("/v1/models", headers={**acme.headers, "api-version": NEWEST})
    assert (named.status_code, named.headers["api-version"]) == (200, NEWEST)


async def test_a_version_that_there_is_not_is_refused_on_both_ports_before_anything_is_done(
    api: httpx.AsyncClient, admin: httpx.AsyncClient, operator: Operator, acme: Tenant
) -> None:
    wrong = {"api-version": "2026-1-1"}
    for client, path, headers in (
        (api, "/v1/keys", acme.headers),
        (admin, "/admin/v1/tenants/acme/keys", OPERATOR),
    ):
        refused = await client.post(path, headers={**headers, **wrong}, json={})
        error = refused.json()["error"]
        assert (refused.status_code, error["code"]) == (400, "api_version_unknown")
        assert NEWEST in error["message"]
        done = await client.post(path, headers={**headers, "api-version": NEWEST}, json={})
        assert (done.status_code, done.headers["api-version"]) == (201, NEWEST)  # control
    assert len((await operator.done("GET", "/tenants/acme/keys"))["data"]) == 3
    for client in (api, admin):
        assert (await client.get("/livez", headers=wrong)).status_code == 200


async def test_the_stock_sdk_which_names_no_version_is_served(
    tenant_app: FastAPI, acme: Tenant
) -> None:
    async with (
        serving(tenant_app) as url,
        AsyncOpenAI(base_url=f"{url}/v1", api_key=acme.secret, max_retries=0) as client,
    ):
        answer = await client.models.with_raw_response.list()
    assert answer.headers["api-version"] == NEWEST and len(answer.parse().data) > 0


def test_the_documents_name_the_header_once_and_every_operation_takes_it(
    tenant_app: FastAPI, admin_app: FastAPI
) -> None:
    for document in (tenant_document(tenant_app), admin_document(admin_app)):
        header = document["components"]["parameters"]["ApiVersion"]
        assert (header["in"], header["example"]) == ("header", NEWEST)
        assert NEWEST in document["info"]["description"]
        for name, operation in operations_of(document):
            taken = [each.get("$ref") for each in operation["parameters"]]
            assert taken.count("#/components/parameters/ApiVersion") == 1, name
