"""A tenant is changed, suspended, resumed and erased; what it owes and what was done to it stay."""

from __future__ import annotations

from pathlib import Path

import httpx
import pytest

from app.context import AppContext
from lora.base_spec import BaseSpec
from tests.builders.adapter_files import adapter_files
from tests.builders.operator import OPERATOR, Operator, Tenant
from tests.builders.tiny_base import MODEL_ID


def holds_weights(store: Path) -> bool:
    return any(store.rglob("*.safetensors"))


@pytest.fixture
async def acme(operator: Operator) -> Tenant:
    return await operator.new_tenant("acme")


async def test_a_tenant_keeps_no_prompts_unless_it_says_so_and_for_how_long(
    operator: Operator, acme: Tenant
) -> None:
    tenant = await operator.done("GET", "/tenants/acme")
    assert tenant["data_policy"] == {"store_prompts": False, "retention_days": None}

    opted_in = {"store_prompts": True, "retention_days": 30}
    changed = await operator.done("PATCH", "/tenants/acme", json={"data_policy": opted_in})
    assert changed["data_policy"] == opted_in

    for policy in ({"store_prompts": True}, {"retention_days": 30}):
        refused = await operator.call("PATCH", "/tenants/acme", json={"data_policy": policy})
        error = refused.json()["error"]
        assert (refused.status_code, error["code"]) == (400, "invalid_value")


async def test_what_is_not_sent_is_not_changed(operator: Operator, acme: Tenant) -> None:
    body = {"external_id": "crm-1", "metadata": {"a": "b"}, "allowed_bases": [MODEL_ID]}
    first = await operator.done("PATCH", "/tenants/acme", json=body)
    second = await operator.done("PATCH", "/tenants/acme", json={"external_id": None})

    assert {field: first[field] for field in body} == body
    assert second == first | {"external_id": None, "etag": second["etag"]}
    await operator.done("POST", "/tenants", json={"slug": "globex", "external_id": "crm-1"})
    taken = await operator.call("PATCH", "/tenants/acme", json={"external_id": "crm-1"})
    assert (taken.status_code, taken.json()["error"]["code"]) == (409, "name_conflict")


async def test_a_change_meant_for_another_state_is_refused(
    operator: Operator, admin: httpx.AsyncClient, acme: Tenant
) -> None:
    etag = (await operator.done("GET", "/tenants/acme"))["etag"]

    async def change(name: str, if_match: str) -> httpx.Response:
        headers = {**OPERATOR, "if-match": if_match}
        body = {"external_id": name}
        return await admin.patch("/admin/v1/tenants/acme", json=body, headers=headers)

    first, late = await change("one", f'"{etag}"'), await change("two", etag)
    assert first.status_code == 200
    assert (late.status_code, late.json()["error"]["code"]) == (412, "etag_mismatch")
    assert late.json()["error"]["etag"] == first.json()["etag"]
    assert late.headers["x-should-retry"] == "false"
    assert (await change("three", "*")).status_code == 200


async def test_suspending_and_resuming_twice_changes_nothing_more(
    operator: Operator, acme: Tenant
) -> None:
    for verb, status in (("suspend", "suspended"), ("resume", "active")):
        once, twice = [await operator.done("POST", f"/tenants/acme/{verb}") for _ in range(2)]
        assert once == twice and once["status"] == status
    events = (await operator.done("GET", "/audit/acme"))["data"]
    assert len(events) == 4  # tenant and key created, suspended, resumed


async def test_a_base_that_is_not_the_tenants_is_neither_listed_nor_called(
    operator: Operator, api: httpx.AsyncClient, tiny_base: BaseSpec, acme: Tenant
) -> None:
    await operator.new_adapter("acme", "bot")
    await operator.push("acme", "bot", adapter_files(tiny_base))
    await operator.done("PATCH", "/tenants/acme", json={"allowed_bases": []})

    listed = (await api.get("/v1/models", headers=acme.headers)).json()["data"]
    assert [model["id"] for model in listed] == ["bot"]
    for path in (f"/v1/models/{MODEL_ID}", "/v1/models/nothing"):
        response = await api.get(path, headers=acme.headers)
        assert (response.status_code, response.json()["error"]["code"]) == (404, "model_not_found")
    body = {"model": MODEL_ID, "messages": [{"role": "user", "content": "Hi"}]}
    called = await api.post("/v1/chat/completions", headers=acme.headers, json=body)
    assert (called.status_code, called.json()["error"]["code"]) == (404, "model_not_found")


async def test_a_keys_own_list_bounds_what_it_sees_and_calls(
    operator: Operator, api: httpx.AsyncClient, tiny_base: BaseSpec, acme: Tenant
) -> None:
    for seed, name in enumerate(("one", "two")):
        await operator.new_adapter("acme", name)
        await operator.push("acme", name, adapter_files(tiny_base, seed=seed))
    key = await operator.new_key("acme", allowed_models=["one"])
    headers = {"x-api-key": key["secret"]}

    listed = (await api.get("/v1/models", headers=headers)).json()["data"]
    assert [model["id"] for model in listed] == ["one"]
    for name, status in (("one", 200), ("one@v1", 200), ("two", 404), (MODEL_ID, 404)):
        assert (await api.get(f"/v1/models/{name}", headers=headers)).status_code == status, name


async def test_deleting_says_what_went_and_erasing_does_not_wait(
    operator: Operator, context: AppContext, tiny_base: BaseSpec
) -> None:
    store = Path(context.settings.adapter_store)
    for erase in (False, True):
        await operator.new_tenant("acme")
        await operator.new_adapter("acme", "bot")
        await operator.push("acme", "bot", adapter_files(tiny_base))
        deleted = await operator.done("DELETE", "/tenants/acme", params={"erase": erase})

        erased = deleted["erased"]
        assert (erased["keys"], erased["adapters"], erased["versions"]) == (1, 1, 1)
        assert erased["bytes"] > 1000
        assert (deleted["bytes_gone_within_s"] == 0) == erase
        await operator.run_jobs()
        assert holds_weights(store) != erase
        await operator.run_jobs_after()
        assert not holds_weights(store)
