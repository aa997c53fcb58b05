"""Every list that is read page by page is read from either end, and no row twice or never."""

from __future__ import annotations

from typing import Any

import httpx
import pytest
from fastapi import FastAPI
from fastapi.routing import iter_route_contexts

from lora.base_spec import BaseSpec
from tests.builders.adapter_files import adapter_files
from tests.builders.clock import Clock
from tests.builders.operator import OPERATOR, Operator, Tenant

NUM = 3
ACME, BOT = "/admin/v1/tenants/acme", "/admin/v1/tenants/acme/adapters/bot"
LISTS = {  # and the order that each has where none is asked for
    "/admin/v1/tenants": "asc",
    "/admin/v1/plans": "asc",
    "/admin/v1/prices": "asc",
    "/admin/v1/audit": "asc",
    "/admin/v1/audit/acme": "asc",
    f"{ACME}/keys": "asc",
    f"{ACME}/adapters": "asc",
    f"{ACME}/erasures": "asc",
    f"{BOT}/versions": "asc",
    f"{BOT}/uploads": "asc",
    f"{BOT}/imports": "asc",
    f"{BOT}/rollouts": "asc",
    f"{BOT}/aliases/prod/history": "desc",
    "/v1/keys": "asc",
    "/v1/adapters": "asc",
    "/v1/adapters/bot/versions": "asc",
    "/v1/files": "desc",
    "/v1/batches": "desc",
}
FEEDS = {"/admin/v1/events"}  # what comes next: nobody follows it backwards
SCOPES = ("inference", "adapters:write", "keys:write")


@pytest.fixture
async def acme(operator: Operator, tiny_base: BaseSpec, clock: Clock) -> Tenant:
    """With at least `NUM` of everything that is listed."""
    acme = await operator.new_tenant("acme", scopes=SCOPES)
    hour_s = (int(clock.now().timestamp()) // 3600 + 1) * 3600
    price = {"currency": "usd", "input": "1", "output": "2"}
    bot = "/tenants/acme/adapters/bot"
    for name in ("bot", "b", "c"):
        await operator.new_adapter("acme", name)
    for number in range(NUM):
        await operator.new_tenant(f"other-{number}")
        await operator.new_key("acme")
        await operator.done("POST", "/plans", json={"name": f"plan-{number}"})
        effective = {"effective_at": hour_s + 3600 * number}
        await operator.done("POST", "/prices", json=price | effective)
        files = adapter_files(tiny_base, rank=1, seed=number)
        await operator.push("acme", "bot", files)
        declared = [{"path": each, "bytes": 1, "sha256": "0" * 64} for each in files]
        await operator.done("POST", f"{bot}/uploads", json={"files": declared})
        await operator.done("POST", f"{bot}/imports", json={"source": "hf://acme/bot"})
        rollout = {"alias": "prod", "to": "v2", "ladder": [50, 100]}
        if number:
            begun = await operator.done("POST", f"{bot}/rollouts", json=rollout)
            await operator.done("POST", f"{bot}/rollouts/{begun['id']}/cancel")
    begun = await operator.done("POST", f"{bot}/rollouts", json=rollout | {"to": "v3"})
    await operator.done("POST", f"{bot}/rollouts/{begun['id']}/cancel")
    for number in range(NUM):
        await operator.push("acme", "c", adapter_files(tiny_base, rank=2, seed=number))
    path = "/tenants/acme/adapters/c/versions"
    await operator.done("DELETE", "/tenants/acme/adapters/c/aliases/prod")
    for number in range(NUM):
        await operator.done("DELETE", f"{path}/v{number + 1}", params={"erase": True})
        await operator.run_jobs_after()
    return acme


@pytest.fixture
async def batches(api: httpx.AsyncClient, acme: Tenant) -> None:
    for _ in range(NUM):
        kept = await api.post(
            "/v1/files",
            headers=acme.headers,
            data={"purpose": "batch"},
            files={"file": ("in.jsonl", b"{}\n")},
        )
        body = {
            "input_file_id": kept.json()["id"],
            "endpoint": "/v1/completions",
            "completion_window": "24h",
        }
        assert (await api.post("/v1/batches", headers=acme.headers, json=body)).is_success


async def read(
    client: httpx.AsyncClient, path: str, headers: dict[str, str], **query: Any
) -> list[str]:
    """The ids of all rows, two a page."""
    found: list[str] = []
    while True:
        after = {"after": found[-1]} if found else {}
        response = await client.get(path, headers=headers, params={"limit": 2, **query, **after})
        assert response.status_code == 200, response.text
        page = response.json()
        found += [row.get("id") or row["tenant_id"] for row in page["data"]]
        if not page["has_more"]:
            return found


@pytest.mark.usefixtures("batches")
async def test_every_list_is_read_from_either_end_and_no_row_is_repeated_or_left_out(
    api: httpx.AsyncClient, admin: httpx.AsyncClient, acme: Tenant
) -> None:
    for path, default in LISTS.items():
        is_admins = path.startswith("/admin")
        client, headers = (admin, OPERATOR) if is_admins else (api, acme.headers)
        whole = await read(client, path, headers, limit=100)
        forwards = await read(client, path, headers, order="asc")
        backwards = await read(client, path, headers, order="desc")
        assert len(forwards) >= NUM, path
        assert forwards == list(reversed(backwards)) != backwards, path
        assert len({*forwards}) == len(forwards), path
        assert whole == {"asc": forwards, "desc": backwards}[default], path
        if "history" not in path and path != "/admin/v1/audit":  # those by their own order
            assert forwards == sorted(forwards), path
        refused = await client.get(path, headers=headers, params={"order": "sideways"})
        assert refused.status_code == 400, path


def test_every_route_with_a_cursor_takes_an_order(tenant_app: FastAPI, admin_app: FastAPI) -> None:
    seen = set()
    for app in (tenant_app, admin_app):
        for context in iter_route_contexts(app.routes):
            names = _query_names(context.dependant)
            if {"after", "limit"} <= names:
                seen.add(context.path)
                assert "order" in names or context.path in FEEDS, context.path
    assert len(seen) > len(LISTS) - 3


def _query_names(dependant: Any) -> set[str]:
    found = {field.alias for field in dependant.query_params}
    return found.union(*(_query_names(each) for each in dependant.dependencies), set())
