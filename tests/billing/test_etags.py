"""Whatever changes an object may say which state it means, and does nothing to another one.

One walk through the life of everything there is, by operators and by tenants: each change is tried
with the etag of a state that has passed, which is refused and leaves the object as it was, and then
with the one that was just read.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from fastapi import FastAPI
from fastapi.routing import RouteContext, iter_route_contexts

from app.etags import Tagged
from lora.base_spec import BaseSpec
from tests.builders.adapter_files import adapter_files
from tests.builders.clock import Clock
from tests.builders.operator import OPERATOR, Operator, Tenant

SCOPES = ("inference", "adapters:write", "keys:write")
BOT = "/adapters/bot"
OF_NOTHING = "0" * 32

TAKE_NO_ETAG = {
    # They make something, and leave what there is as it was.
    "",
    "evaluate",
    "validate",
    "download",
    # Levers: what is resident is nobody's to say but the engines'.
    "preload",
    "pin",
    "evict",
    "probe",
    # Sent while the upload is being sent, and any number of times.
    "{number}",
}
"""How the paths of routes end that take no `If-Match`; "" is that of a collection."""


class Walk:
    """One caller's calls, each change tried twice."""

    def __init__(self, client: httpx.AsyncClient, prefix: str, headers: dict[str, str]) -> None:
        self._client = client
        self._prefix = prefix
        self._headers = headers
        self._passed: dict[str, str] = {}
        self.num_changes = 0

    async def call(
        self, method: str, path: str, if_match: str | None = None, **options: Any
    ) -> httpx.Response:
        headers = self._headers if if_match is None else {**self._headers, "if-match": if_match}
        return await self._client.request(method, self._prefix + path, headers=headers, **options)

    async def done(self, method: str, path: str, **options: Any) -> dict[str, Any]:
        response = await self.call(method, path, **options)
        assert response.is_success, response.text
        return dict(response.json())

    async def change(
        self, thing: str, method: str = "POST", verb: str = "", **options: Any
    ) -> dict[str, Any]:
        """`verb` is what follows the path of the thing itself."""
        before = await self.done("GET", thing)
        stale = self._passed.get(thing, OF_NOTHING)
        assert stale != before["etag"], f"{thing} was changed and has the same etag"
        refused = await self.call(method, thing + verb, stale, **options)
        told = (refused.status_code, refused.json().get("error", {}).get("code"))
        assert told == (412, "etag_mismatch"), f"{method} {thing}{verb}: {refused.text}"
        assert refused.json()["error"]["etag"] == before["etag"]
        assert await self.done("GET", thing) == before, f"{method} {thing}{verb} did something"
        self._passed[thing] = before["etag"]
        made = await self.call(method, thing + verb, f'"{before["etag"]}"', **options)
        assert made.is_success, f"{method} {thing}{verb}: {made.text}"
        self.num_changes += 1
        return dict(made.json())


async def walk_keys(walk: Walk) -> None:
    key = await walk.done("POST", "/keys", json={"name": "old", "scopes": ["inference"]})
    assert key["etag"] == (await walk.done("GET", f"/keys/{key['id']}"))["etag"]
    await walk.change(f"/keys/{key['id']}", verb="/rotate")
    await walk.change(f"/keys/{key['id']}", verb="/disable")
    await walk.change(f"/keys/{key['id']}", "DELETE")


async def walk_rollouts(walk: Walk) -> None:
    body = {"alias": "prod", "to": "v2", "ladder": [50, 100]}
    rollout = await walk.done("POST", f"{BOT}/rollouts", json=body)
    path = f"{BOT}/rollouts/{rollout['id']}"
    for verb in ("/pause", "/resume", "/cancel"):
        await walk.change(path, verb=verb)
    rollout = await walk.done("POST", f"{BOT}/rollouts", json=body)
    await walk.change(f"{BOT}/rollouts/{rollout['id']}", verb="/promote")  # prod is v2 now


async def walk_versions(walk: Walk) -> None:
    path = f"{BOT}/versions/v1"
    await walk.change(path, verb="/deprecate", json={"date": "2099-01-01"})
    await walk.change(path, verb="/activate")
    await walk.change(path, verb="/deprecate")
    await walk.change(path, verb="/archive")
    await walk.change(path, verb="/restore")
    await walk.change(path, "DELETE")


async def walk_aliases(walk: Walk) -> None:
    path = f"{BOT}/aliases/prod"
    await walk.change(path, "PUT", json={"version": "v2", "sticky_by": "safety_identifier"})
    await walk.change(path, verb="/rollback")
    await walk.change(path, "DELETE")


async def walk_uploads(walk: Walk, files: dict[str, bytes]) -> None:
    declared = [
        {"path": name, "bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}
        for name, data in files.items()
    ]
    body = {"files": declared}
    upload = await walk.done("POST", f"{BOT}/uploads", json=body)
    await walk.change(f"{BOT}/uploads/{upload['id']}", verb="/cancel")
    upload = await walk.done("POST", f"{BOT}/uploads", json=body)
    assert all(file["skip_upload"] for file in upload["files"])
    await walk.change(f"{BOT}/uploads/{upload['id']}", verb="/complete")


async def walk_imports(walk: Walk) -> None:
    job = await walk.done("POST", f"{BOT}/imports", json={"source": "hf://acme/bot"})
    await walk.change(f"{BOT}/imports/{job['id']}", verb="/cancel")


async def walk_adapter(walk: Walk, files: dict[str, bytes]) -> None:
    await walk_uploads(walk, files)
    await walk_imports(walk)
    await walk_rollouts(walk)
    await walk_aliases(walk)
    await walk_versions(walk)
    await walk.change(BOT, "PATCH", json={"description": "Answers about returns."})
    await walk.change(BOT, "DELETE", params={"force": True})


async def walk_files_and_batches(walk: Walk) -> None:
    file = await walk.done(
        "POST", "/files", data={"purpose": "batch"}, files={"file": ("in.jsonl", b"{}\n")}
    )
    body = {
        "input_file_id": file["id"],
        "endpoint": "/v1/completions",
        "completion_window": "24h",
    }
    batch = await walk.done("POST", "/batches", json=body)
    await walk.change(f"/batches/{batch['id']}", verb="/cancel")
    file = await walk.done(
        "POST", "/files", data={"purpose": "batch"}, files={"file": ("in.jsonl", b"{}\n")}
    )
    await walk.change(f"/files/{file['id']}", "DELETE")


async def walk_fleet(walk: Walk, clock: Clock) -> None:
    next_hour = (int(clock.now().timestamp()) // 3600 + 1) * 3600
    price = {"currency": "usd", "input": "1", "output": "2", "effective_at": next_hour}
    made = await walk.done("POST", "/prices", json=price)
    await walk.change(f"/prices/{made['id']}", "DELETE")
    await walk.done("POST", "/plans", json={"name": "gold"})
    limits = await walk.done("GET", "/tenants/acme/limits")
    refused = await walk.call("PUT", "/tenants/acme/plan", OF_NOTHING, json={"plan": "gold"})
    assert refused.status_code == 412
    plan = {"plan": "gold"}
    taken = await walk.call("PUT", "/tenants/acme/plan", limits["etag"], json=plan)
    assert taken.is_success
    await walk.change("/tenants/acme/limits", "PUT", json={"limits": {"concurrency": 5}})
    await walk.change("/tenants/acme", "PATCH", json={"metadata": {"a": "b"}})
    await walk.change("/tenants/acme", verb="/suspend")
    await walk.change("/tenants/acme", verb="/resume")
    await walk.change("/tenants/acme", "DELETE")


@pytest.fixture
def files(tiny_base: BaseSpec) -> dict[str, bytes]:
    return adapter_files(tiny_base, rank=1, seed=1)


@pytest.fixture
async def acme(operator: Operator, tiny_base: BaseSpec, files: dict[str, bytes]) -> Tenant:
    """With an adapter of two versions; `prod` is v1."""
    tenant = await operator.new_tenant("acme", scopes=SCOPES)
    await operator.new_adapter("acme", "bot")
    for each in (files, adapter_files(tiny_base, rank=1, seed=2)):
        await operator.push("acme", "bot", each)
    return tenant


@pytest.fixture
def theirs(api: httpx.AsyncClient, acme: Tenant) -> Walk:
    return Walk(api, "/v1", acme.headers)


async def test_a_tenants_change_meant_for_another_state_changes_nothing(
    theirs: Walk, files: dict[str, bytes]
) -> None:
    await walk_keys(theirs)
    await walk_files_and_batches(theirs)
    await walk_adapter(theirs, files)
    assert theirs.num_changes == 23


async def test_an_operators_change_meant_for_another_state_changes_nothing(
    admin: httpx.AsyncClient, acme: Tenant, files: dict[str, bytes], clock: Clock
) -> None:
    of_tenant = Walk(admin, "/admin/v1/tenants/acme", OPERATOR)
    await walk_keys(of_tenant)
    await walk_adapter(of_tenant, files)
    fleet = Walk(admin, "/admin/v1", OPERATOR)
    await walk_fleet(fleet, clock)
    assert (of_tenant.num_changes, fleet.num_changes) == (21, 6)


async def test_control_a_change_that_heeds_no_etag_is_noticed(
    theirs: Walk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("app.api_keys.service.check_etag", lambda current, if_match: None)
    with pytest.raises(AssertionError, match=r"/keys/.*/rotate"):
        await walk_keys(theirs)


async def test_of_changes_meant_for_one_state_one_is_made(theirs: Walk) -> None:
    key = await theirs.done("POST", "/keys", json={"name": "ci", "scopes": ["inference"]})
    path = f"/keys/{key['id']}/disable"
    answers = await asyncio.gather(*(theirs.call("POST", path, key["etag"]) for _ in range(4)))
    assert sorted(each.status_code for each in answers) == [200, 412, 412, 412]
    path = f"{BOT}/versions/v2"
    version = await theirs.done("GET", path)
    answers = await asyncio.gather(
        *(
            theirs.call("POST", f"{path}/deprecate", version["etag"], json={"date": day})
            for day in ("2099-01-01", "2099-01-02", "2099-01-03")
        )
    )
    assert sorted(each.status_code for each in answers) == [200, 412, 412]


def routes_of(*apps: FastAPI) -> Iterator[tuple[str, RouteContext]]:
    for app in apps:
        for context in iter_route_contexts(app.routes):
            if str(context.path).startswith(("/v1/", "/admin/v1/")):
                for method in context.methods or ():
                    yield method, context


def headers_of(dependant: Any) -> set[str]:
    found = {field.alias.lower().replace("_", "-") for field in dependant.header_params}
    return found.union(*(headers_of(each) for each in dependant.dependencies), set())


def ending(path: str) -> str:
    """Of what is done to an object; "" where a collection, or what is no object, is called."""
    parts = [part for part in path.split("/") if part]
    is_object = any(part.startswith("{") for part in parts[-2:])
    collections = {"versions", "uploads", "imports", "rollouts", "keys", "adapters"}
    return parts[-1] if is_object and parts[-1] not in collections else ""


def test_every_route_that_changes_an_object_takes_if_match(
    tenant_app: FastAPI, admin_app: FastAPI
) -> None:
    without = {
        f"{method} {context.path}"
        for method, context in routes_of(tenant_app, admin_app)
        if method not in ("GET", "HEAD") and "if-match" not in headers_of(context.dependant)
    }
    assert any(each.endswith("/preload") for each in without)  # control
    assert {each for each in without if ending(each) not in TAKE_NO_ETAG} == set()


def test_every_object_with_a_route_of_its_own_has_an_etag(
    tenant_app: FastAPI, admin_app: FastAPI
) -> None:
    seen = set()
    for method, context in routes_of(tenant_app, admin_app):
        model = context.response_model
        if method == "GET" and isinstance(model, type) and issubclass(model, Tagged):
            seen.add(model.model_fields["object"].default)
    assert seen == {
        "tenant",
        "plan",
        "limits",
        "price",
        "api_key",
        "adapter",
        "adapter.version",
        "adapter.alias",
        "adapter.upload",
        "adapter.import",
        "rollout",
        "file",
        "batch",
    }
