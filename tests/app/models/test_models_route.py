from __future__ import annotations

import httpx
import pytest

from lora.base_spec import BaseSpec
from tests.builders.adapter_files import adapter_files
from tests.builders.operator import Operator, Tenant
from tests.builders.tiny_base import MODEL_ID


@pytest.fixture
async def acme(operator: Operator, tiny_base: BaseSpec) -> Tenant:
    return await tenant_with(operator, tiny_base, "acme", "support-bot")


@pytest.fixture
async def globex(operator: Operator, tiny_base: BaseSpec) -> Tenant:
    return await tenant_with(operator, tiny_base, "globex", "globex-only")


async def tenant_with(operator: Operator, base: BaseSpec, slug: str, adapter: str) -> Tenant:
    tenant = await operator.new_tenant(slug)
    await operator.new_adapter(slug, adapter)
    await operator.push(slug, adapter, adapter_files(base))
    return tenant


async def test_a_tenant_lists_the_base_and_its_own_adapters_and_no_others(
    api: httpx.AsyncClient, acme: Tenant, globex: Tenant
) -> None:
    response = await api.get("/v1/models", headers=acme.headers)
    listed = response.json()
    assert response.status_code == 200
    assert [model["id"] for model in listed["data"]] == [MODEL_ID, "support-bot"]
    assert listed["object"] == "list" and listed["has_more"] is False
    assert (listed["first_id"], listed["last_id"]) == (MODEL_ID, "support-bot")
    base, adapter = listed["data"]
    assert base == {
        "id": MODEL_ID,
        "object": "model",
        "created": 0,
        "owned_by": "tenfold",
        "shutdown_date": None,
        "x_adapter": None,
    }
    assert adapter["owned_by"] == "acme"
    facts = adapter["x_adapter"]
    assert (facts["version"], facts["base"], facts["state"]) == ("v1", MODEL_ID, "active")
    assert facts["digest"].startswith("sha256:")
    assert adapter["created"] > 1_700_000_000
    others = await api.get("/v1/models", headers=globex.headers)
    assert [model["id"] for model in others.json()["data"]] == [MODEL_ID, "globex-only"]


async def test_a_model_is_found_by_every_name_it_can_be_called_by(
    api: httpx.AsyncClient, acme: Tenant
) -> None:
    listed = await api.get("/v1/models", headers=acme.headers)
    digest = listed.json()["data"][1]["x_adapter"]["digest"]
    for name in ("support-bot", "support-bot:prod", "support-bot@v1", f"support-bot@{digest}"):
        found = await api.get(f"/v1/models/{name}", headers=acme.headers)
        assert found.json()["id"] == name
        assert found.json()["x_adapter"]["digest"] == digest
    base = await api.get(f"/t/acme/v1/models/{MODEL_ID}", headers=acme.headers)
    assert base.json()["id"] == MODEL_ID


async def test_another_tenants_model_is_the_same_404_as_none_at_all(
    api: httpx.AsyncClient, acme: Tenant, globex: Tenant
) -> None:
    foreign = await api.get("/v1/models/globex-only", headers=acme.headers)
    absent = await api.get("/v1/models/globex-onlx", headers=acme.headers)
    assert foreign.status_code == absent.status_code == 404
    assert foreign.content.replace(b"only", b"onlx") == absent.content
    assert (await api.get("/v1/models/globex-only", headers=globex.headers)).status_code == 200
    for path in ("/t/globex/v1/models", "/t/nobody/v1/models"):
        assert (await api.get(path, headers=acme.headers)).status_code == 404


async def test_names_outside_the_grammar_are_not_found(
    api: httpx.AsyncClient, acme: Tenant
) -> None:
    for name in ("", "%00", "a%00b", "..%2f..", "%F0%9F%98%80", "x" * 600, "support-bot@v0"):
        response = await api.get(f"/v1/models/{name}", headers=acme.headers)
        assert (response.status_code, response.json()["error"]["code"]) == (404, "model_not_found")


async def test_no_key_is_a_401_and_a_key_without_the_scope_a_403(
    api: httpx.AsyncClient, operator: Operator
) -> None:
    tenant = await operator.new_tenant("initech", scopes=["adapters:write"])
    for path in ("/v1/models", f"/v1/models/{MODEL_ID}"):
        assert (await api.get(path)).status_code == 401
        assert (await api.get(path, headers=tenant.headers)).status_code == 403
