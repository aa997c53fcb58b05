"""Adapters, versions and aliases over REST, for operators and for tenants themselves."""

from __future__ import annotations

from pathlib import Path

import httpx
import pytest

from app.settings import Settings
from lora.base_spec import BaseSpec
from tests.builders.adapter_files import adapter_files
from tests.builders.operator import OPERATOR, Operator, Tenant

BOT = "/tenants/acme/adapters/bot"


@pytest.fixture
async def acme(operator: Operator) -> Tenant:
    return await operator.new_tenant("acme")


@pytest.fixture
async def globex(operator: Operator) -> Tenant:
    return await operator.new_tenant("globex")


@pytest.fixture
async def two_versions(operator: Operator, acme: Tenant, tiny_base: BaseSpec) -> None:
    await operator.new_adapter("acme", "bot")
    for seed in (1, 2):
        await operator.push("acme", "bot", adapter_files(tiny_base, seed=seed))


def stored_folders(settings: Settings) -> list[Path]:
    return [path for path in Path(settings.adapter_store).glob("ten_*/*") if path.is_dir()]


def code(response: httpx.Response) -> tuple[int, str]:
    return response.status_code, response.json()["error"]["code"]


async def test_name_is_unique_within_a_tenant_only(
    operator: Operator, acme: Tenant, globex: Tenant
) -> None:
    await operator.new_adapter("acme", "bot")
    await operator.new_adapter("globex", "bot")

    response = await operator.call("POST", "/tenants/acme/adapters", json={"name": "bot"})

    assert code(response) == (409, "name_conflict")
    assert response.headers["x-should-retry"] == "false"


@pytest.mark.parametrize(
    "name", ["", "Bot", "base", "latest", "-x", "a/b", "a" * 64, "a:b", "a\x00"]
)
async def test_bad_name_gets_422(operator: Operator, acme: Tenant, name: str) -> None:
    response = await operator.call("POST", "/tenants/acme/adapters", json={"name": name})
    assert code(response) == (422, "name_invalid")


async def test_adapter_for_another_base_gets_422(operator: Operator, acme: Tenant) -> None:
    body = {"name": "bot", "base_model": "meta-llama/Llama-3-8B"}
    response = await operator.call("POST", "/tenants/acme/adapters", json=body)
    assert code(response) == (422, "base_model_mismatch")


async def test_adapters_are_listed_page_by_page(operator: Operator, acme: Tenant) -> None:
    names = [f"bot-{i}" for i in range(5)]
    for name in names:
        await operator.new_adapter("acme", name)

    seen: list[str] = []
    query: dict[str, object] = {"limit": 2}
    while True:
        page = await operator.done("GET", "/tenants/acme/adapters", params=query)
        seen += [row["name"] for row in page["data"]]
        if not page["has_more"]:
            break
        query["after"] = page["last_id"]
    assert seen == names


async def test_alias_moves_and_is_deleted(operator: Operator, two_versions: None) -> None:
    moved = await operator.done("PUT", f"{BOT}/aliases/prod", json={"version": "v2"})
    assert moved["version"] == "v2"
    await operator.done("PUT", f"{BOT}/aliases/canary", json={"version": moved["version_id"]})
    assert (await operator.done("GET", BOT))["aliases"] == {"canary": "v2", "prod": "v2"}

    await operator.done("DELETE", f"{BOT}/aliases/canary")

    assert (await operator.done("GET", BOT))["aliases"] == {"prod": "v2"}
    assert code(await operator.call("DELETE", f"{BOT}/aliases/canary")) == (404, "not_found")


@pytest.mark.parametrize("alias", ["v3", "sha256", "Prod", "latest"])
async def test_alias_that_looks_like_something_else_gets_422(
    operator: Operator, two_versions: None, alias: str
) -> None:
    response = await operator.call("PUT", f"{BOT}/aliases/{alias}", json={"version": "v1"})
    assert code(response) == (422, "name_invalid")


async def test_alias_needs_an_active_version_of_its_own_adapter(
    operator: Operator, two_versions: None, tiny_base: BaseSpec
) -> None:
    await operator.new_adapter("acme", "other")
    other = await operator.push("acme", "other", adapter_files(tiny_base, seed=9))
    await operator.upload("acme", "bot", adapter_files(tiny_base, seed=3))

    waiting = await operator.call("PUT", f"{BOT}/aliases/prod", json={"version": "v3"})
    foreign = await operator.call("PUT", f"{BOT}/aliases/prod", json={"version": other["id"]})
    absent = await operator.call("PUT", f"{BOT}/aliases/prod", json={"version": "v9"})

    assert code(waiting) == (409, "version_not_active")
    assert code(foreign) == code(absent) == (404, "not_found")


async def test_version_under_an_alias_cannot_be_deleted(
    operator: Operator, two_versions: None, settings: Settings
) -> None:
    response = await operator.call("DELETE", f"{BOT}/versions/v1")
    assert code(response) == (409, "alias_in_use")
    assert response.json()["error"]["aliases"] == ["prod"]

    await operator.done("PUT", f"{BOT}/aliases/prod", json={"version": "v2"})
    await operator.done("DELETE", f"{BOT}/versions/v1")
    await operator.done("DELETE", f"{BOT}/versions/v1")  # a repetition changes nothing
    await operator.run_jobs_after()

    assert (await operator.done("GET", f"{BOT}/versions/v1"))["state"] == "deleted"
    assert len(stored_folders(settings)) == 1


async def test_number_of_a_deleted_version_is_not_given_again(
    operator: Operator, two_versions: None, tiny_base: BaseSpec
) -> None:
    second = await operator.done("GET", f"{BOT}/versions/v2")
    await operator.done("DELETE", f"{BOT}/versions/v2")

    again = await operator.push("acme", "bot", adapter_files(tiny_base, seed=2))

    assert (again["version"], again["digest"]) == ("v3", second["digest"])
    assert again["state"] == "active"


async def test_prod_that_was_taken_away_is_not_given_by_itself(
    operator: Operator, two_versions: None, tiny_base: BaseSpec
) -> None:
    await operator.done("DELETE", f"{BOT}/aliases/prod")
    await operator.push("acme", "bot", adapter_files(tiny_base, seed=3))
    assert (await operator.done("GET", BOT))["aliases"] == {}


async def test_an_adapter_with_aliases_is_deleted_by_force_alone(
    operator: Operator, two_versions: None
) -> None:
    refused = await operator.call("DELETE", BOT)
    assert code(refused) == (409, "alias_in_use")
    assert refused.json()["error"]["aliases"] == ["prod"]
    await operator.done("DELETE", f"{BOT}/aliases/prod")
    await operator.done("DELETE", BOT)
    assert code(await operator.call("GET", BOT)) == (404, "not_found")


async def test_deleted_adapter_is_gone_with_its_aliases_and_its_name_is_free(
    operator: Operator,
    admin: httpx.AsyncClient,
    two_versions: None,
    tiny_base: BaseSpec,
    settings: Settings,
) -> None:
    seen = await operator.done("GET", BOT)
    await operator.done("PUT", f"{BOT}/aliases/canary", json={"version": "v2"})
    headers = {**OPERATOR, "if-match": seen["etag"]}
    refused = await admin.delete(f"/admin/v1{BOT}", headers=headers)
    assert code(refused) == (412, "etag_mismatch")
    assert len((await operator.done("GET", BOT))["aliases"]) == 2

    await operator.done("DELETE", BOT, params={"force": True})
    assert code(await operator.call("GET", BOT)) == (404, "not_found")
    await operator.run_jobs_after()
    assert stored_folders(settings) == []

    await operator.new_adapter("acme", "bot")
    assert (await operator.push("acme", "bot", adapter_files(tiny_base)))["version"] == "v1"
    assert (await operator.done("GET", BOT))["aliases"] == {"prod": "v1"}


async def test_bytes_that_another_adapter_needs_are_kept(
    operator: Operator, two_versions: None, tiny_base: BaseSpec, settings: Settings
) -> None:
    await operator.new_adapter("acme", "twin")
    await operator.push("acme", "twin", adapter_files(tiny_base, seed=1))
    assert len(stored_folders(settings)) == 2  # one folder for both

    await operator.done("DELETE", BOT, params={"force": True})
    await operator.run_jobs_after()
    assert len(stored_folders(settings)) == 1

    await operator.done("DELETE", "/tenants/acme/adapters/twin", params={"force": True})
    await operator.run_jobs_after()
    assert stored_folders(settings) == []


async def test_deleted_tenants_bytes_are_removed(
    operator: Operator, two_versions: None, settings: Settings
) -> None:
    await operator.done("DELETE", "/tenants/acme")
    await operator.run_jobs_after()
    assert stored_folders(settings) == []


async def test_tenant_manages_its_own_adapters_by_the_same_rules(
    operator: Operator, api: httpx.AsyncClient, acme: Tenant, tiny_base: BaseSpec
) -> None:
    for prefix, name in (("/v1", "one"), ("/t/acme/v1", "two")):
        created = await api.post(f"{prefix}/adapters", json={"name": name}, headers=acme.headers)
        assert created.status_code == 201
        files = {key: (key, data) for key, data in adapter_files(tiny_base).items()}
        path = f"{prefix}/adapters/{name}/versions"
        uploaded = await api.post(path, files=files, headers=acme.headers)
        assert uploaded.status_code == 201
        await operator.run_jobs()
        listed = await api.get(path, headers=acme.headers)
        assert [row["state"] for row in listed.json()["data"]] == ["active"]

    listed = await api.get("/v1/adapters", headers=acme.headers)
    assert [row["name"] for row in listed.json()["data"]] == ["one", "two"]
    deleted = await api.delete("/v1/adapters/one?force=true", headers=acme.headers)
    assert deleted.json()["deleted"] is True


async def test_another_tenants_adapter_is_not_found_by_name_or_id(
    operator: Operator, api: httpx.AsyncClient, two_versions: None, globex: Tenant
) -> None:
    adapter = await operator.done("GET", BOT)
    version = await operator.done("GET", f"{BOT}/versions/v1")

    for method, path in (
        ("GET", ""),
        ("DELETE", ""),
        ("GET", "/versions"),
        ("GET", "/versions/v1"),
        ("GET", f"/versions/{version['id']}"),
        ("DELETE", f"/versions/{version['id']}"),
        ("DELETE", "/aliases/prod"),
        ("POST", "/versions"),
    ):
        for reference in ("bot", adapter["id"]):
            foreign, absent = [
                await api.request(method, f"/v1/adapters/{name}{path}", headers=globex.headers)
                for name in (reference, "nothing")
            ]
            assert code(foreign) == code(absent) == (404, "not_found"), (method, path)
            assert foreign.content == absent.content
    assert (await operator.done("GET", BOT))["aliases"] == {"prod": "v1"}
