"""Quotas: what a tenant may have is what its plan, or it itself, was told; nobody else's counts."""

from __future__ import annotations

import asyncio
from datetime import timedelta

import httpx
import pytest

from app.plans.limits import Layer
from app.uploads.quotas import DEFAULTS, Quota, quotas_in_force
from lora.base_spec import BaseSpec
from tests.builders.adapter_files import adapter_files
from tests.builders.clock import Clock
from tests.builders.operator import Operator, Tenant


async def limit(operator: Operator, **limits: int) -> None:
    await operator.done("PUT", "/tenants/acme/limits", json={"limits": limits})


def quota_of(response: httpx.Response) -> str:
    error = response.json()["error"]
    assert (response.status_code, error["code"]) == (403, "quota_exceeded"), response.text
    assert response.headers["x-should-retry"] == "false"
    name: str = error["quota"]["name"]
    return name


async def test_adapters(operator: Operator, acme: Tenant, globex: Tenant) -> None:
    await limit(operator, adapters=2)
    await operator.new_adapter("acme", "second")
    path = "/tenants/acme/adapters"
    assert quota_of(await operator.call("POST", path, json={"name": "third"})) == "adapters"
    # A name that is taken is said to be, so that who makes sure of an adapter may go on.
    taken = await operator.call("POST", path, json={"name": "second"})
    assert taken.json()["error"]["code"] == "name_conflict"
    await operator.new_adapter("globex", "second")
    await operator.done("DELETE", f"{path}/second")
    await operator.new_adapter("acme", "third")


async def test_of_adapters_made_at_once_no_more_pass(operator: Operator, acme: Tenant) -> None:
    await limit(operator, adapters=3)
    responses = await asyncio.gather(
        *(
            operator.call("POST", "/tenants/acme/adapters", json={"name": f"bot{number}"})
            for number in range(6)
        )
    )
    assert sorted(each.status_code for each in responses) == [201] * 2 + [403] * 4


async def test_bytes_and_nothing_is_kept_of_what_is_refused(
    operator: Operator, acme: Tenant, tiny_base: BaseSpec
) -> None:
    files = [adapter_files(tiny_base, seed=seed) for seed in range(2)]
    num_bytes = sum(map(len, files[0].values()))
    await limit(operator, adapter_bytes=num_bytes + 100)
    first = await operator.push("acme", "bot", files[0])
    assert quota_of(await operator.upload("acme", "bot", files[1])) == "adapter_bytes"
    assert len((await operator.done("GET", "/tenants/acme/adapters/bot/versions"))["data"]) == 1

    await limit(operator, adapter_bytes=10 * num_bytes)
    assert (await operator.upload("acme", "bot", files[1])).status_code == 201
    assert first["state"] == "active"


async def test_rank(operator: Operator, acme: Tenant, tiny_base: BaseSpec) -> None:
    await limit(operator, adapter_rank=4)
    assert (await operator.upload("acme", "bot", adapter_files(tiny_base))).status_code == 201
    refused = await operator.upload("acme", "bot", adapter_files(tiny_base, rank=8))
    assert quota_of(refused) == "adapter_rank"


async def test_uploads_of_a_day(
    operator: Operator, acme: Tenant, tiny_base: BaseSpec, clock: Clock
) -> None:
    await limit(operator, uploads_per_day=2)
    for seed in range(2):
        files = adapter_files(tiny_base, seed=seed)
        assert (await operator.upload("acme", "bot", files)).status_code == 201
    files = adapter_files(tiny_base, seed=3)
    assert quota_of(await operator.upload("acme", "bot", files)) == "uploads_per_day"
    clock.advance(timedelta(days=1).total_seconds())
    assert (await operator.upload("acme", "bot", files)).status_code == 201


async def test_a_plan_says_it_for_all_its_tenants(operator: Operator, acme: Tenant) -> None:
    plan = {"name": "small", "limits": {"adapters": 1}}
    await operator.done("POST", "/plans", json=plan)
    await operator.done("PUT", "/tenants/acme/plan", json={"plan": "small"})
    response = await operator.call("POST", "/tenants/acme/adapters", json={"name": "second"})
    assert quota_of(response) == "adapters"
    assert response.json()["error"]["quota"]["source"] == "plan:small"
    shown = await operator.done("GET", "/tenants/acme/limits")
    said = {each["quota"]: (each["limit"], each["source"]) for each in shown["quotas"]}
    assert said["adapters"] == (1, "plan:small")
    assert said["uploads_per_day"][1] == "default"


@pytest.mark.parametrize(
    ("plan", "tenant", "expected"),
    [
        ({}, {}, (10_000, "default")),
        ({"adapters": 5}, {}, (5, "plan")),
        ({"adapters": 5}, {"adapters": 7}, (7, "tenant")),
        ({"adapters": 5}, {"adapters": 0}, (0, "tenant")),
        ({"adapters": 5}, {"adapters": None}, None),
    ],
)
def test_the_last_that_names_a_quota_decides(
    plan: dict[str, int], tenant: dict[str, int | None], expected: tuple[int, str] | None
) -> None:
    layers = [DEFAULTS, Layer("plan", plan), Layer("tenant", tenant)]
    found = {each.quota: (each.limit, each.source) for each in quotas_in_force(layers)}
    assert found.get(Quota.ADAPTERS) == expected
