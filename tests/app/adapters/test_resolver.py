"""Which version a `model` means, and that it is never another tenant's."""

from __future__ import annotations

import httpx
import pytest

from app.adapters.resolver import ResolvedModel, list_models, resolve
from app.adapters.weighted import Draw
from app.auth import verify_key
from app.context import AppContext
from app.errors import ModelNotFoundError
from lora.base_spec import BaseSpec
from tests.builders.adapter_files import adapter_files
from tests.builders.operator import Operator, Tenant


@pytest.fixture
async def acme(operator: Operator) -> Tenant:
    return await operator.new_tenant("acme")


@pytest.fixture
async def globex(operator: Operator) -> Tenant:
    return await operator.new_tenant("globex")


async def resolved(context: AppContext, tenant: Tenant, model: str) -> ResolvedModel:
    principal = await verify_key(context, tenant.secret)
    async with context.database.session() as session:
        named = await resolve(session, principal, model, context.base)
    return named.pick(Draw(), model)


async def listed(context: AppContext, tenant: Tenant) -> list[str]:
    principal = await verify_key(context, tenant.secret)
    async with context.database.session() as session:
        return [card.id for card in await list_models(session, principal, context.base)]


async def test_every_form_of_a_name_pins_the_version_it_means(
    operator: Operator, context: AppContext, tiny_base: BaseSpec, acme: Tenant
) -> None:
    await operator.new_adapter("acme", "bot")
    first, second = [
        await operator.push("acme", "bot", adapter_files(tiny_base, seed=seed)) for seed in (1, 2)
    ]
    path = "/tenants/acme/adapters/bot/aliases/canary"
    await operator.done("PUT", path, json={"version": "v2"})

    for model, version in {
        "bot": first,
        "bot:prod": first,
        "bot:canary": second,
        "bot@v1": first,
        "bot@v2": second,
        f"bot@{second['digest']}": second,
        f"bot@{second['digest'][: len('sha256:') + 12]}": second,
    }.items():
        found = await resolved(context, acme, model)
        assert found.adapter is not None
        assert found.requested == model
        assert (found.version, found.digest) == (version["version"], version["digest"])
        assert found.adapter.tenant_id == acme.id
        assert found.adapter.digest == version["digest"]
        assert (context.store.fetch(found.adapter.locator) / "adapter_config.json").is_file()
    assert await listed(context, acme) == [tiny_base.model_id, "bot:canary", "bot"]


async def test_base_model_resolves_to_no_adapter(context: AppContext, acme: Tenant) -> None:
    found = await resolved(context, acme, context.base.model_id)
    assert (found.adapter, found.version, found.digest) == (None, None, None)


async def test_same_name_of_two_tenants_means_each_ones_own(
    operator: Operator, context: AppContext, tiny_base: BaseSpec, acme: Tenant, globex: Tenant
) -> None:
    digests = {}
    for seed, tenant in enumerate((acme, globex)):
        await operator.new_adapter(tenant.id, "support-bot")
        version = await operator.push(tenant.id, "support-bot", adapter_files(tiny_base, seed=seed))
        digests[tenant.id] = version["digest"]

    for tenant in (acme, globex):
        found = await resolved(context, tenant, "support-bot")
        assert found.adapter is not None
        assert (found.adapter.tenant_id, found.digest) == (tenant.id, digests[tenant.id])
    with pytest.raises(ModelNotFoundError):
        await resolved(context, acme, f"support-bot@{digests[globex.id]}")


async def test_same_bytes_of_two_tenants_are_kept_apart(
    operator: Operator, context: AppContext, tiny_base: BaseSpec, acme: Tenant, globex: Tenant
) -> None:
    for tenant in (acme, globex):
        await operator.new_adapter(tenant.id, "bot")
        await operator.push(tenant.id, "bot", adapter_files(tiny_base))
    locators = [(await resolved(context, t, "bot")).adapter.locator for t in (acme, globex)]
    assert locators[0] != locators[1]

    await operator.done("DELETE", "/tenants/acme/adapters/bot", params={"force": True})
    await operator.run_jobs_after()

    assert (context.store.fetch(locators[1]) / "adapter_config.json").is_file()


@pytest.mark.parametrize("state", ["verifying", "rejected", "deleting", "deleted"])
async def test_version_that_is_not_active_is_not_found(
    operator: Operator, context: AppContext, tiny_base: BaseSpec, acme: Tenant, state: str
) -> None:
    await operator.new_adapter("acme", "bot")
    await operator.push("acme", "bot", adapter_files(tiny_base, seed=1))
    files = adapter_files(tiny_base, seed=2)
    if state == "rejected":
        content = bytearray(files["adapter_model.safetensors"])
        content[-4:] = b"\x00\x00\xc0\x7f"  # a float32 NaN
        files["adapter_model.safetensors"] = bytes(content)
    assert (await operator.upload("acme", "bot", files)).status_code == 201
    if state != "verifying":
        await operator.run_jobs()
    if state in ("deleting", "deleted"):
        await operator.done("DELETE", "/tenants/acme/adapters/bot/versions/v2")
    if state == "deleted":
        await operator.run_jobs_after()

    version = await operator.done("GET", "/tenants/acme/adapters/bot/versions/v2")
    assert version["state"] == state
    for model in ("bot@v2", f"bot@{version['digest']}"):
        with pytest.raises(ModelNotFoundError):
            await resolved(context, acme, model)


async def test_foreign_and_absent_models_are_the_same_answer(
    operator: Operator, api: httpx.AsyncClient, tiny_base: BaseSpec, acme: Tenant, globex: Tenant
) -> None:
    await operator.new_adapter("globex", "secret-bot")
    version = await operator.push("globex", "secret-bot", adapter_files(tiny_base))
    digest = version["digest"]

    for suffix in ("", ":prod", "@v1", f"@{digest}"):
        assert (
            await api.get(f"/v1/models/secret-bot{suffix}", headers=globex.headers)
        ).status_code == 200
        foreign = await api.get(f"/v1/models/secret-bot{suffix}", headers=acme.headers)
        absent = await api.get(f"/v1/models/absent-bot{suffix}", headers=acme.headers)

        assert foreign.status_code == absent.status_code == 404
        assert foreign.json()["error"]["code"] == "model_not_found"
        assert foreign.content == absent.content.replace(b"absent-bot", b"secret-bot")
        assert {*foreign.headers} == {*absent.headers}
    assert "secret-bot" not in (await api.get("/v1/models", headers=acme.headers)).text
