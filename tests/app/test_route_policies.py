"""Every route declares who may call it, and is tried by everyone who may not."""

from __future__ import annotations

import re

import httpx
import pytest
from fastapi import FastAPI
from fastapi.dependencies.models import Dependant
from fastapi.routing import iter_route_contexts

from app import auth
from app.context import AppContext
from tests.builders.operator import Operator, Tenant

POLICIES = {
    auth.public: "public",
    auth.require_inference: "inference",
    auth.require_adapters_write: "adapters:write",
    auth.require_keys_write: "keys:write",
    auth.require_usage_read: "usage:read",
    auth.require_operator: "operator",
}
VALID_BODIES = {
    ("POST", "keys"): {},
    ("POST", "adapters"): {"name": "x"},
    ("PATCH", "{tenant}"): {},
    ("PATCH", "{adapter}"): {},
    ("PUT", "{alias}"): {"version": "v1"},
    ("PUT", "limits"): {},
    ("PUT", "plan"): {"plan": None},
}
PUBLIC_ROUTES = {("GET", path) for path in ("/livez", "/readyz", "/metrics", "/openapi.json")}

Route = tuple[str, str, str]  # method, path template, policy


def declared_policies(dependant: Dependant) -> set[str]:
    found = {POLICIES[dependant.call]} if dependant.call in POLICIES else set()
    return found.union(*(declared_policies(child) for child in dependant.dependencies), set())


def routes_of(app: FastAPI) -> list[Route]:
    """Every route with its one policy; fails where a route has none, or more than one."""
    routes = []
    for context in iter_route_contexts(app.routes):
        path, dependant = context.path, context.dependant
        policies = declared_policies(dependant)
        assert len(policies) == 1, f"{path} declares {policies or 'no policy'}"
        routes += [(method, path, *policies) for method in context.methods]
    return routes


def concrete(path: str, tenant: str) -> str:
    path = path.replace("{tenant}", tenant).replace("{model:path}", "support-bot")
    return re.sub(r"\{[^}]+\}", "anything", path)


async def status_and_code(
    client: httpx.AsyncClient, method: str, path: str, headers: dict[str, str]
) -> tuple[int, str | None]:
    response = await client.request(method, path, headers=headers)
    code = None if response.is_success else response.json()["error"]["code"]
    return response.status_code, code


@pytest.fixture
async def acme(operator: Operator) -> Tenant:
    return await operator.new_tenant("acme")


@pytest.fixture
async def globex(operator: Operator) -> Tenant:
    return await operator.new_tenant("globex")


def test_every_route_declares_one_policy(tenant_app: FastAPI, admin_app: FastAPI) -> None:
    routes = routes_of(tenant_app) + routes_of(admin_app)

    assert {(method, path) for method, path, policy in routes if policy == "public"} == (
        PUBLIC_ROUTES
    )
    assert {policy for *_, policy in routes} == set(POLICIES.values())
    assert len(routes) > 40


def test_ports_do_not_mix_policies(tenant_app: FastAPI, admin_app: FastAPI) -> None:
    for _, path, policy in routes_of(tenant_app):
        assert policy != "operator" and not path.startswith(("/admin", "/internal", "/metrics"))
    for _, path, policy in routes_of(admin_app):
        assert policy == ("operator" if path.startswith(("/admin/v1/", "/internal/")) else "public")


def test_control_a_route_without_a_policy_is_noticed(context: AppContext) -> None:
    app = FastAPI(openapi_url=None)

    @app.get("/open")
    def open_route() -> None: ...

    with pytest.raises(AssertionError, match="no policy"):
        routes_of(app)


async def test_without_a_key_every_route_is_closed(
    tenant_app: FastAPI,
    admin_app: FastAPI,
    api: httpx.AsyncClient,
    admin: httpx.AsyncClient,
    acme: Tenant,
) -> None:
    for app, client in ((tenant_app, api), (admin_app, admin)):
        for method, path, policy in routes_of(app):
            if policy == "public":
                continue
            for headers in ({}, {"authorization": "Bearer tf_wrong"}, {"x-api-key": "x"}):
                answer = await status_and_code(client, method, concrete(path, "acme"), headers)
                assert answer == (401, "invalid_api_key"), (method, path)


async def test_without_the_scope_every_route_is_closed(
    tenant_app: FastAPI, api: httpx.AsyncClient, operator: Operator, acme: Tenant
) -> None:
    others = {
        "inference": "adapters:write",
        "adapters:write": "keys:write",
        "keys:write": "usage:read",
        "usage:read": "inference",
    }
    keys = {scope: await operator.new_key("acme", scopes=[scope]) for scope in others}

    for method, path, policy in routes_of(tenant_app):
        if policy == "public":
            continue
        headers = {"x-api-key": keys[others[policy]]["secret"]}
        answer = await status_and_code(api, method, concrete(path, "acme"), headers)
        assert answer == (403, "insufficient_permissions"), (method, path)


async def test_another_tenants_path_is_not_found_on_every_route(
    tenant_app: FastAPI, api: httpx.AsyncClient, acme: Tenant, globex: Tenant
) -> None:
    tried = 0
    for method, path, _ in routes_of(tenant_app):
        if "{tenant}" not in path:
            continue
        tried += 1
        foreign, unknown = [
            await api.request(method, concrete(path, tenant), headers=acme.headers)
            for tenant in ("globex", "nobody")
        ]
        assert foreign.status_code == unknown.status_code == 404, (method, path)
        assert foreign.content == unknown.content
    assert tried > 10


async def test_tenants_key_opens_no_admin_route(
    admin_app: FastAPI, admin: httpx.AsyncClient, acme: Tenant
) -> None:
    for method, path, policy in routes_of(admin_app):
        if policy == "operator":
            answer = await status_and_code(admin, method, concrete(path, "acme"), acme.headers)
            assert answer == (401, "invalid_api_key"), (method, path)


async def test_unknown_tenant_is_not_found_on_every_admin_route(
    admin_app: FastAPI, operator: Operator
) -> None:
    for method, path, _ in routes_of(admin_app):
        if "{tenant}" in path:
            body = VALID_BODIES.get((method, path.rpartition("/")[2]))
            relative = concrete(path, "nobody").removeprefix("/admin/v1")
            response = await operator.call(method, relative, json=body)
            assert response.status_code == 404, (method, path, response.text)
