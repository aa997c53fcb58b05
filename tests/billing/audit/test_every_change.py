"""Whatever changes something over REST is in the audit log: a route that is not is noticed here."""

from __future__ import annotations

from collections.abc import Mapping
from hashlib import sha256
from typing import Any

from fastapi import FastAPI
from fastapi.routing import iter_route_contexts

from app.api import ADMIN_PREFIX, TENANT_PREFIXES
from lora.base_spec import BaseSpec
from tests.builders.adapter_files import adapter_files
from tests.builders.operator import Operator

NAMES = {
    "keys": "key",
    "prices": "price",
    "rollouts": "rollout",
    "uploads": "upload",
    "imports": "import_id",
}

Change = tuple[str, str, Mapping[str, Any]]  # method, path below `/admin/v1`, what is sent

IN_A_THOUSAND_YEARS = 3600 * 24 * 365 * 1000
INFERENCE = {  # what tenants do, and change nothing that they or others are held to
    ("POST", "/chat/completions"),
    ("POST", "/completions"),
    ("POST", "/files"),
    ("DELETE", "/files/{file}"),
    ("POST", "/batches"),
    ("POST", "/batches/{batch}/cancel"),
}
BOT = "/tenants/{tenant}/adapters/{adapter}"
NO_CHANGE = {
    ("POST", f"{BOT}/validate"),
    # Recorded, but they ask an engine (tests/corpus).
    ("POST", f"{BOT}/versions/{{version}}/probe"),
    ("POST", f"{BOT}/versions/{{version}}/evaluate"),
    # Bytes on their way; what they complete is a version that is recorded as any (tests/corpus).
    ("PUT", f"{BOT}/uploads/{{upload}}/files/{{path}}/parts/{{number}}"),
    ("POST", f"{BOT}/uploads/{{upload}}/complete"),
}


def changes(base: BaseSpec) -> list[Change]:
    """Each changing route, once, in an order in which each changes something."""
    files, more_files = (
        {name: (name, content) for name, content in adapter_files(base, seed=seed).items()}
        for seed in (0, 1)
    )
    declared = [
        {"path": name, "bytes": len(content), "sha256": sha256(content).hexdigest()}
        for name, content in adapter_files(base).items()
    ]
    acme, bot = "/tenants/{tenant}", "/tenants/{tenant}/adapters/{adapter}"
    limits = {"json": {"requests_per_minute": 5}}
    price = {"currency": "eur", "input": "1", "output": "2", "effective_at": IN_A_THOUSAND_YEARS}
    return [
        ("POST", "/plans", {"json": {"name": "gold"}}),
        ("PUT", "/plans/{plan}", {"json": {"weight": 2}}),
        ("POST", "/prices", {"json": price}),
        ("DELETE", "/prices/{price}", {}),
        ("POST", "/tenants", {"json": {"slug": "acme"}}),
        ("PUT", f"{acme}/plan", {"json": {"plan": "gold"}}),
        ("PUT", f"{acme}/plan", {"json": {"plan": None}}),
        ("DELETE", "/plans/{plan}", {}),
        ("PUT", f"{acme}/limits", {"json": {"weight": 2}}),
        ("PATCH", acme, {"json": {"metadata": {"a": "b"}}}),
        ("POST", f"{acme}/suspend", {}),
        ("POST", f"{acme}/resume", {}),
        ("POST", f"{acme}/keys", {"json": {}}),
        ("PUT", f"{acme}/keys/{{key}}/limits", limits),
        ("POST", f"{acme}/keys/{{key}}/rotate", {}),
        ("POST", f"{acme}/keys/{{key}}/disable", {}),
        ("DELETE", f"{acme}/keys/{{key}}", {}),
        ("POST", f"{acme}/adapters", {"json": {"name": "bot"}}),
        ("PATCH", bot, {"json": {"metadata": {"a": "b"}}}),
        ("PUT", f"{bot}/limits", limits),
        ("POST", f"{bot}/uploads", {"json": {"files": declared}}),
        ("POST", f"{bot}/uploads/{{upload}}/cancel", {}),
        ("POST", f"{bot}/imports", {"json": {"source": "hf://acme/bot"}}),
        ("POST", f"{bot}/imports/{{import_id}}/cancel", {}),
        ("POST", f"{bot}/versions", {"files": files}),
        ("PUT", f"{bot}/aliases/{{alias}}", {"json": {"version": "v1"}}),
        ("POST", f"{bot}/versions/{{version}}/preload", {}),
        ("POST", f"{bot}/versions/{{version}}/pin", {}),
        ("POST", f"{bot}/versions/{{version}}/evict", {}),
        ("POST", f"{bot}/versions", {"files": more_files}),
        ("POST", f"{bot}/rollouts", {"json": {"alias": "prod", "to": "v2"}}),
        ("POST", f"{bot}/rollouts/{{rollout}}/pause", {}),
        ("POST", f"{bot}/rollouts/{{rollout}}/resume", {}),
        ("POST", f"{bot}/rollouts/{{rollout}}/cancel", {}),
        ("POST", f"{bot}/rollouts", {"json": {"alias": "prod", "to": "v2"}}),
        ("POST", f"{bot}/rollouts/{{rollout}}/promote", {}),
        ("POST", f"{bot}/aliases/{{alias}}/rollback", {}),
        ("DELETE", f"{bot}/aliases/{{alias}}", {}),
        ("POST", f"{bot}/versions/{{version}}/deprecate", {}),
        ("POST", f"{bot}/versions/{{version}}/activate", {}),
        ("POST", f"{bot}/versions/{{version}}/deprecate", {"json": {"date": "2999-01-01"}}),
        ("POST", f"{bot}/versions/{{version}}/archive", {}),
        ("POST", f"{bot}/versions/{{version}}/restore", {}),
        ("DELETE", f"{bot}/versions/{{version}}", {}),
        ("DELETE", bot, {}),
        ("DELETE", acme, {}),
    ]


def changing_routes(app: FastAPI, prefix: str) -> set[tuple[str, str]]:
    """(method, path below the prefix) of every route that may change something."""
    return {
        (method, context.path.removeprefix(prefix))
        for context in iter_route_contexts(app.routes)
        for method in context.methods
        if method not in ("GET", "HEAD") and context.path.startswith(prefix)
    }


async def num_events(operator: Operator) -> int:
    heads = (await operator.done("GET", "/audit", params={"limit": 100}))["data"]
    return sum(head["seq"] for head in heads)


async def test_every_change_leaves_an_event_and_reading_none(
    operator: Operator, tiny_base: BaseSpec
) -> None:
    names = {"tenant": "acme", "adapter": "bot", "alias": "prod", "version": "v1", "plan": "gold"}
    before = await num_events(operator)
    for method, path, sent in changes(tiny_base):
        done = await operator.done(method, path.format_map(names), **sent)
        kind = path.rpartition("/")[2]
        if kind in NAMES:
            names[NAMES[kind]] = done["id"]
        assert await num_events(operator) > before, (method, path)
        await operator.run_jobs()  # an alias needs a version that was verified
        before = await num_events(operator)
    for path in ("/tenants", "/plans", "/prices", "/audit/fleet"):
        await operator.done("GET", path)
    assert await num_events(operator) == before
    fleet = await operator.done("GET", "/audit/fleet/verification")
    assert fleet["is_intact"]


async def test_every_changing_route_is_tried_here(
    tenant_app: FastAPI, admin_app: FastAPI, tiny_base: BaseSpec
) -> None:
    tried = {(method, path) for method, path, _ in changes(tiny_base)}
    tenants_own = {
        (method, path.removeprefix("/tenants/{tenant}")) for method, path in tried | NO_CHANGE
    }

    assert changing_routes(admin_app, ADMIN_PREFIX) == tried | NO_CHANGE
    for prefix in TENANT_PREFIXES:
        assert changing_routes(tenant_app, prefix) <= tenants_own | INFERENCE
