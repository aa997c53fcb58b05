"""Quotas: what a tenant may have is what its plan, or it itself, was told; nobody else's counts."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from safetensors.numpy import save

from app.adapters.jobs import JobRunner
from app.adapters.turns import Turns
from app.api import create_admin_app
from app.context import AppContext
from app.db import tenant_scope
from app.plans.limits import Layer
from app.settings import Settings
from app.uploads.quotas import DEFAULTS, Quota, Quotas, quotas_in_force
from lora.base_spec import BaseSpec
from tests.builders.adapter_files import adapter_config, adapter_files, adapter_tensors
from tests.builders.clock import Clock
from tests.builders.operator import Operator, Tenant
from tests.builders.waiting import until


async def limit(operator: Operator, **limits: int) -> None:
    await operator.done("PUT", "/tenants/acme/limits", json={"limits": limits})


def num_stored(settings: Settings) -> int:
    return len([*Path(settings.adapter_store).glob("ten_*/*")])


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


async def test_of_uploads_at_once_no_more_pass_than_have_room_and_no_byte_of_the_rest_is_kept(
    operator: Operator, acme: Tenant, tiny_base: BaseSpec, settings: Settings
) -> None:
    files = [adapter_files(tiny_base, seed=seed) for seed in range(3)]
    num_bytes = sum(map(len, files[0].values()))
    await limit(operator, adapter_bytes=num_bytes + 100)
    answers = await asyncio.gather(*(operator.upload("acme", "bot", each) for each in files))
    assert sorted(each.status_code for each in answers) == [201, 403, 403]
    assert {quota_of(each) for each in answers if each.status_code == 403} == {"adapter_bytes"}
    assert num_stored(settings) == 1


@dataclass
class SlowStore:
    """Puts nothing down before it may."""

    num_waiting: int = 0
    began: threading.Event = field(default_factory=threading.Event)
    may_go_on: threading.Event = field(default_factory=threading.Event)


@pytest.fixture
def slow(context: AppContext, monkeypatch: pytest.MonkeyPatch) -> Iterator[SlowStore]:
    store, put = SlowStore(), context.store.put

    def slowly(*args: Any) -> str:
        store.num_waiting += 1
        store.began.set()
        assert store.may_go_on.wait(30)
        return put(*args)

    monkeypatch.setattr(context.store, "put", slowly)
    yield store
    store.may_go_on.set()


async def test_a_tenant_is_not_locked_while_a_slow_store_takes_its_bytes(
    operator: Operator, acme: Tenant, tiny_base: BaseSpec, slow: SlowStore
) -> None:
    uploading = asyncio.create_task(operator.upload("acme", "bot", adapter_files(tiny_base)))
    assert await asyncio.to_thread(slow.began.wait, 30)
    await asyncio.wait_for(operator.new_adapter("acme", "meanwhile"), 10)
    await asyncio.wait_for(
        operator.done("DELETE", "/tenants/acme/adapters/meanwhile", params={"force": True}), 10
    )
    slow.may_go_on.set()
    assert (await uploading).status_code == 201


async def test_a_slow_store_holds_up_no_check_and_no_upload_for_ever(
    operator: Operator,
    acme: Tenant,
    tiny_base: BaseSpec,
    context: AppContext,
    jobs: JobRunner,
    slow: SlowStore,
) -> None:
    impatient = replace(context, keeping=Turns(timeout_s=0.2))
    sent = [adapter_files(tiny_base, rank=1, seed=seed) for seed in range(3)]
    transport = httpx.ASGITransport(create_admin_app(impatient))
    async with httpx.AsyncClient(transport=transport, base_url="http://tenfold.test") as admin:
        operator = Operator(admin, jobs)
        putting = [asyncio.create_task(operator.upload("acme", "bot", files)) for files in sent[:2]]
        await until(lambda: slow.num_waiting == 2)
        path = "/tenants/acme/adapters/bot/validate"
        files = {name: (name, content) for name, content in sent[2].items()}
        assert (await operator.call("POST", path, files=files)).status_code == 200
        refused = await operator.upload("acme", "bot", sent[2])
        assert (refused.status_code, refused.json()["error"]["code"]) == (503, "overloaded")
        assert refused.headers["retry-after"]
        slow.may_go_on.set()
        assert [(await each).status_code for each in putting] == [201, 201]
        assert (await operator.upload("acme", "bot", sent[2])).status_code == 201


@pytest.mark.parametrize(("are_anothers_too", "num_kept"), [(False, 0), (True, 1)])
async def test_what_is_refused_at_the_end_leaves_no_bytes_but_those_that_others_have(
    operator: Operator,
    acme: Tenant,
    tiny_base: BaseSpec,
    settings: Settings,
    slow: SlowStore,
    are_anothers_too: bool,
    num_kept: int,
) -> None:
    """The adapter is deleted while the store takes its bytes."""
    files = adapter_files(tiny_base)
    if are_anothers_too:
        slow.may_go_on.set()
        await operator.new_adapter("acme", "other")
        await operator.push("acme", "other", files)
        slow.began.clear()
        slow.may_go_on.clear()
    uploading = asyncio.create_task(operator.upload("acme", "bot", files))
    assert await asyncio.to_thread(slow.began.wait, 30)
    await asyncio.wait_for(
        operator.done("DELETE", "/tenants/acme/adapters/bot", params={"force": True}), 10
    )
    slow.may_go_on.set()
    assert (await uploading).status_code == 404
    assert num_stored(settings) == num_kept


async def test_control_whoever_holds_what_a_tenant_has_holds_up_its_other_uploads(
    operator: Operator, acme: Tenant, context: AppContext
) -> None:
    async with context.database.session() as session:
        await tenant_scope(session, acme.id)
        await Quotas(session, acme.id).check_version(1, 1)
        waiting = asyncio.create_task(operator.new_adapter("acme", "meanwhile"))
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(asyncio.shield(waiting), 0.3)
    assert (await waiting)["name"] == "meanwhile"


@pytest.fixture
def unsound(tiny_base: BaseSpec) -> dict[str, bytes]:
    """What passes the structural check, and is rejected by the worker that reads its numbers."""
    tensors = adapter_tensors(tiny_base)
    next(iter(tensors.values()))[0, 0] = np.inf
    return {"adapter_config.json": adapter_config(), "adapter_model.safetensors": save(tensors)}


async def test_bytes_of_a_rejected_version_that_are_put_back_and_refused_do_not_stay(
    operator: Operator,
    acme: Tenant,
    unsound: dict[str, bytes],
    settings: Settings,
    slow: SlowStore,
) -> None:
    """The adapter is deleted while the store takes its bytes; another's version has them not."""
    slow.may_go_on.set()
    await operator.new_adapter("acme", "other")
    assert (await operator.push("acme", "other", unsound))["state"] == "rejected"
    assert num_stored(settings) == 0, "they were removed when it was rejected"
    slow.began.clear()
    slow.may_go_on.clear()
    uploading = asyncio.create_task(operator.upload("acme", "bot", unsound))
    assert await asyncio.to_thread(slow.began.wait, 30)
    await asyncio.wait_for(
        operator.done("DELETE", "/tenants/acme/adapters/bot", params={"force": True}), 10
    )
    slow.may_go_on.set()
    assert (await uploading).status_code == 404
    await operator.run_jobs_after()
    assert num_stored(settings) == 0


async def test_a_rejected_version_that_is_sent_again_counts_as_any_other(
    operator: Operator, acme: Tenant, unsound: dict[str, bytes], settings: Settings
) -> None:
    assert (await operator.push("acme", "bot", unsound))["state"] == "rejected"
    num_bytes = sum(map(len, unsound.values()))
    await limit(operator, adapter_bytes=num_bytes - 1)
    assert quota_of(await operator.upload("acme", "bot", unsound)) == "adapter_bytes"
    assert num_stored(settings) == 0
    shown = await operator.done("GET", "/tenants/acme/adapters/bot/versions/v1")
    assert shown["state"] == "rejected"
    await limit(operator, adapter_bytes=num_bytes)  # the control
    assert (await operator.upload("acme", "bot", unsound)).status_code == 201
