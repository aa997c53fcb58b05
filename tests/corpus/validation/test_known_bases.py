"""An adapter of another base that is known here is refused, however well its shapes fit.

Known are the bases that the operator names, and those that the tenant has adapters of.
"""

from __future__ import annotations

import httpx
import pytest
from sqlalchemy import update

from app.context import AppContext
from app.db import tenant_scope
from app.settings import Settings
from app.tables import Adapter
from lora.base_spec import BaseSpec
from lora.store import CONFIG_FILE
from tests.builders.adapter_files import adapter_config, adapter_files
from tests.builders.operator import Operator, Tenant
from tests.builders.part_sender import PartSender

OTHER, SERVED = "meta-llama/Meta-Llama-3-8B", "tenfold-test/Tiny-Llama"
FORMER = "acme/base-of-last-year"
Files = dict[str, bytes]


@pytest.fixture
def settings(settings: Settings) -> Settings:
    """The operator names the base that is served, too: that refuses nothing."""
    return settings.model_copy(update={"known_bases": f" {OTHER}, {SERVED},"})


def trained_on(base: BaseSpec, name: str | None) -> Files:
    config = adapter_config(base_model_name_or_path=name)
    return adapter_files(base) | {CONFIG_FILE: config}


def code_of(response: httpx.Response) -> str | None:
    return None if response.is_success else response.json()["error"]["code"]


def is_unverified(version: dict[str, object]) -> bool:
    report = version["report"]
    assert isinstance(report, dict)
    return "base_model_unverified" in [check["rule"] for check in report["checks"]]


async def test_another_base_that_is_known_here_is_refused_by_name(
    operator: Operator, acme: Tenant, tiny_base: BaseSpec
) -> None:
    files = trained_on(tiny_base, OTHER.lower() + "/")
    refused = await operator.upload("acme", "bot", files)
    assert (refused.status_code, code_of(refused)) == (422, "base_model_mismatch")
    [check] = [
        each
        for each in refused.json()["error"]["report"]["checks"]
        if each["rule"] == "base_model_mismatch"
    ]
    assert (check["param"], check["expected"]) == ("base_model_name_or_path", SERVED)
    parts = {name: (name, content) for name, content in files.items()}
    tried = await operator.call("POST", "/tenants/acme/adapters/bot/validate", files=parts)
    assert (tried.status_code, code_of(tried)) == (422, "base_model_mismatch")


async def test_an_upload_in_parts_is_held_to_the_same(
    api: httpx.AsyncClient, acme: Tenant, tiny_base: BaseSpec
) -> None:
    sender = PartSender(api, acme.headers, "/v1/adapters/bot/uploads")
    files = trained_on(tiny_base, OTHER)
    session = await sender.begin(files)
    await sender.send_all(session, files)
    assert code_of(await sender.complete(session)) == "base_model_mismatch"


async def test_a_base_that_the_tenant_has_adapters_of_is_known_to_it_alone(
    operator: Operator, context: AppContext, acme: Tenant, tiny_base: BaseSpec
) -> None:
    files = trained_on(tiny_base, FORMER)
    assert code_of(await operator.upload("acme", "bot", files)) is None

    former = await operator.new_adapter("acme", "former")
    async with context.database.session() as session:
        await tenant_scope(session, acme.id)
        query = update(Adapter).where(Adapter.id == former["id"])
        await session.execute(query.values(base_model_id=FORMER))
        await session.commit()
    assert code_of(await operator.upload("acme", "bot", files)) == "base_model_mismatch"

    await operator.new_tenant("globex")
    await operator.new_adapter("globex", "bot")
    assert code_of(await operator.upload("globex", "bot", files)) is None


async def test_control_the_served_base_passes_and_an_unknown_name_is_a_warning(
    operator: Operator, acme: Tenant, tiny_base: BaseSpec
) -> None:
    names = {SERVED: False, "somebody/elses": True, "/models/llama-3": True, None: True}
    for name, unverified in names.items():
        response = await operator.upload("acme", "bot", trained_on(tiny_base, name))
        assert response.status_code == 201, response.text
        assert is_unverified(response.json()) is unverified, name
