"""An API process with two tenants on real servers, for whoever tries its doors.

Knows nothing of what is tried. Invariants: whatever belongs to a tenant has a name, an id or a text
that nothing else has, so that it is recognised wherever it turns up; an absent object is named as
one of its kind would be.
"""

from __future__ import annotations

import asyncio
import itertools
import re
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from typing import Any, Literal

import httpx
from fastapi import FastAPI
from fastapi.dependencies.models import Dependant
from fastapi.routing import iter_route_contexts
from sqlalchemy import text

from app import auth
from app.adapters.jobs import JobRunner
from app.api import create_admin_app, create_app
from app.context import AppContext, open_context
from app.db import Database
from app.settings import Settings
from tests.builders.adapter_files import adapter_files
from tests.builders.canaries import PROMPT
from tests.builders.operator import Operator
from tests.builders.stub_engine import StubEngine

SCOPES = ("inference", "adapters:write", "keys:write", "usage:read")
POLICIES = {
    auth.require_inference: "inference",
    auth.require_adapters_write: "adapters:write",
    auth.require_keys_write: "keys:write",
    auth.require_usage_read: "usage:read",
    auth.require_operator: "operator",
    auth.public: "public",
}
ABSENT = {
    "tenant": "q9q9q9",
    "adapter": "z7z7z7",
    "alias": "w8w8w8",
    "version": f"ver_{'0' * 26}",
    "key": f"key_{'0' * 26}",
    "model": "z7z7z7",
    "file": f"fil_{'0' * 26}",
    "batch": f"bat_{'0' * 26}",
    "rollout": f"rol_{'0' * 26}",
    "upload": f"upl_{'0' * 26}",
    "import_id": f"imp_{'0' * 26}",
}
OWNED = (
    "adapter",
    "version",
    "key",
    "model",
    "file",
    "batch",
    "rollout",
    "upload",
    "import_id",
)
NOBODYS = {"path": "adapter_config.json", "number": "1"}
"""What a path names besides, and belongs to nobody."""
UPLOAD = {
    "files": [
        {"path": name, "bytes": 1, "sha256": "0" * 64}
        for name in ("adapter_config.json", "adapter_model.safetensors")
    ]
}
IMPORT = {"source": "hf://org/repo"}
BATCH = {"endpoint": "/v1/chat/completions", "completion_window": "24h"}

_POSSESSIONS = text(
    "SELECT (SELECT json_agg(t)::text FROM tenants t WHERE id = :tenant_id),"
    " (SELECT json_agg(k ORDER BY id)::text FROM api_keys k WHERE tenant_id = :tenant_id),"
    " (SELECT json_agg(a ORDER BY id)::text FROM adapters a WHERE tenant_id = :tenant_id),"
    " (SELECT json_agg(v ORDER BY id)::text FROM adapter_versions v WHERE tenant_id = :tenant_id),"
    " (SELECT json_agg(x ORDER BY adapter_id, alias)::text FROM adapter_aliases x"
    " WHERE tenant_id = :tenant_id),"
    " (SELECT json_agg(f ORDER BY id)::text FROM files f WHERE tenant_id = :tenant_id),"
    " (SELECT json_agg(b ORDER BY id)::text FROM batches b WHERE tenant_id = :tenant_id),"
    " (SELECT json_agg(u ORDER BY id)::text FROM uploads u WHERE tenant_id = :tenant_id),"
    " (SELECT json_agg(i ORDER BY id)::text FROM imports i WHERE tenant_id = :tenant_id),"
    " (SELECT json_agg(h)::text FROM audit_heads h WHERE tenant_id = :tenant_id)"
)

Side = Literal["admin", "tenant"]


@dataclass(frozen=True, slots=True)
class Route:
    """`policy`: the scope it wants, `operator` or `public`."""

    side: Side
    method: str
    path: str
    policy: str

    @property
    def parameters(self) -> list[str]:
        return re.findall(r"\{(\w+)(?::path)?\}", self.path)

    @property
    def objects(self) -> list[str]:
        """Kinds of things that a request names, in its path or its body, and that have an owner."""
        kinds = [kind for kind in self.parameters if kind in OWNED]
        if self.path.endswith("/completions"):
            kinds.append("model")
        if (self.method, self.path.rpartition("/")[2]) == ("PUT", "{alias}"):
            kinds.append("version")
        if (self.method, self.path.rpartition("/")[2]) == ("POST", "batches"):
            kinds.append("file")
        return kinds

    @property
    def is_read_only(self) -> bool:
        return self.method == "GET" or self.path.endswith("/completions")

    def body(self, names: dict[str, str]) -> dict[str, Any] | None:
        """What is sent with it, about what `names` names."""
        match self.method, self.path.rpartition("/")[2]:
            case "POST", "completions" if "chat" in self.path:
                messages = [{"role": "user", "content": PROMPT}]
                return {"model": names["model"], "messages": messages, "max_tokens": 1}
            case "POST", "completions":
                return {"model": names["model"], "prompt": PROMPT, "max_tokens": 1}
            case "PUT", "{alias}":
                return {"version": names["version"]}
            case "POST", "keys" | "adapters":
                return {"name": "made"}
            case "POST", "rollouts":
                return {"alias": names["alias"], "to": "v1"}
            case "POST", "batches":
                return {**BATCH, "input_file_id": names["file"]}
            case "POST", "uploads":
                return UPLOAD
            case "POST", "imports":
                return IMPORT
            case "PATCH", _:
                return {}
        return None

    def at(self, names: dict[str, str]) -> str:
        """The path to what `names` names."""
        known = names | NOBODYS
        return re.sub(r"\{(\w+)(?::path)?\}", lambda match: known.get(match[1], "x"), self.path)


@dataclass(slots=True)
class Tenant:
    """`secrets`: a key with all scopes, one for each scope that lacks it, and dead ones."""

    id: str
    slug: str
    names: dict[str, str]
    marks: set[str]
    secrets: dict[str, str]
    dead: list[str] = field(default_factory=list)
    key_ids: dict[str, str] = field(default_factory=dict)
    is_suspended: bool = False


class World:
    def __init__(
        self,
        context: AppContext,
        owner: Database,
        operator: Operator,
        clients: dict[Side, httpx.AsyncClient],
    ) -> None:
        self._owner = owner
        self.operator = operator
        self.clients = clients
        self.routes = list(_routes("tenant", create_app(context))) + list(
            _routes("admin", create_admin_app(context))
        )
        self._base = context.base
        self._numbers = itertools.count(1)

    async def new_tenant(self) -> Tenant:
        """With an adapter, a version, an alias, and keys of every kind."""
        number = f"{next(self._numbers):04d}"
        slug, adapter, alias = f"slug{number}", f"bot{number}", f"alias{number}"
        note = f"canary-of-{number}"
        row = await self.operator.done(
            "POST", "/tenants", json={"slug": slug, "external_id": f"crm-{note}"}
        )
        tenant_id = row["id"]
        made = await self.operator.done(
            "POST", f"/tenants/{slug}/adapters", json={"name": adapter, "description": note}
        )
        files = adapter_files(self._base, rank=1, seed=int(number))
        version = await self.operator.push(slug, adapter, files)
        path = f"/tenants/{slug}/adapters/{adapter}/aliases/{alias}"
        await self.operator.done("PUT", path, json={"version": version["version"]})
        tenant = Tenant(
            id=tenant_id,
            slug=slug,
            names={
                "tenant": slug,
                "adapter": adapter,
                "alias": alias,
                "version": version["id"],
                "model": adapter,
            },
            marks={tenant_id, slug, adapter, alias, note, made["id"], version["id"]},
            secrets={},
        )
        tenant.marks |= {version["digest"]}
        await self.new_key(tenant, "all", SCOPES)
        for scope in SCOPES:
            await self.new_key(tenant, scope, [other for other in SCOPES if other != scope])
        await self.kill_key(tenant)
        await self._give_file_and_batch(tenant, note)
        await self._give_rollout(tenant, int(number))
        await self._give_upload_and_import(tenant)
        return tenant

    async def _give_rollout(self, tenant: Tenant, number: int) -> None:
        """From the version that its alias means to a second one."""
        bot = f"/tenants/{tenant.slug}/adapters/{tenant.names['adapter']}"
        files = adapter_files(self._base, rank=1, seed=50_000 + number)
        second = await self.operator.push(tenant.slug, tenant.names["adapter"], files)
        body = {"alias": tenant.names["alias"], "to": second["version"]}
        rollout = await self.operator.done("POST", f"{bot}/rollouts", json=body)
        tenant.names["rollout"] = rollout["id"]
        tenant.marks |= {rollout["id"], second["id"], second["digest"]}

    async def _give_upload_and_import(self, tenant: Tenant) -> None:
        bot = f"/tenants/{tenant.slug}/adapters/{tenant.names['adapter']}"
        upload = await self.operator.done("POST", f"{bot}/uploads", json=UPLOAD)
        job = await self.operator.done("POST", f"{bot}/imports", json=IMPORT)
        # Its events end with it, and no worker is here to end it.
        await self.operator.done("POST", f"{bot}/imports/{job['id']}/cancel")
        tenant.names |= {"upload": upload["id"], "import_id": job["id"]}
        tenant.marks |= {upload["id"], job["id"]}

    async def _give_file_and_batch(self, tenant: Tenant, note: str) -> None:
        headers = {"authorization": f"Bearer {tenant.secrets['all']}"}
        client = self.clients["tenant"]
        kept = await client.post(
            "/v1/files",
            headers=headers,
            data={"purpose": "batch"},
            files={"file": (f"file-{note}", f"content-{note}".encode())},
        )
        tenant.names["file"] = kept.json()["id"]
        body = {**BATCH, "input_file_id": tenant.names["file"]}
        batch = await client.post("/v1/batches", headers=headers, json=body)
        tenant.names["batch"] = batch.json()["id"]
        tenant.marks |= {tenant.names["file"], tenant.names["batch"]}

    async def new_key(self, tenant: Tenant, name: str, scopes: Any) -> None:
        key = await self.operator.new_key(tenant.id, scopes=scopes)
        tenant.secrets[name] = key["secret"]
        tenant.key_ids[name] = key["id"]
        tenant.names["key"] = tenant.key_ids["all"] if "all" in tenant.key_ids else key["id"]
        tenant.marks |= {key["id"]}

    async def kill_key(self, tenant: Tenant, *, is_deleted: bool = False) -> None:
        """The key with all scopes is revoked, and another one takes its place."""
        key_id, secret = tenant.key_ids["all"], tenant.secrets["all"]
        path = f"/tenants/{tenant.id}/keys/{key_id}"
        if is_deleted:
            await self.operator.done("DELETE", path)
        else:
            await self.operator.done("POST", f"{path}/disable")
        tenant.dead.append(secret)
        await self.new_key(tenant, "all", SCOPES)

    async def ask(self, route: Route, names: dict[str, str], secret: str | None) -> httpx.Response:
        headers = {} if secret is None else {"authorization": f"Bearer {secret}"}
        return await self.clients[route.side].request(
            route.method,
            route.at(names),
            headers=headers,
            json=route.body(names),
            params={"start_time": 0} if route.path.endswith("/usage") else None,
        )

    async def possessions(self, tenant: Tenant) -> list[Any]:
        """Every row of a tenant's, as the database's owner sees it."""
        async with self._owner.session() as session:
            rows = await session.execute(_POSSESSIONS, {"tenant_id": tenant.id})
            return list(rows.one())


def _routes(side: Side, app: FastAPI) -> Iterator[Route]:
    for context in iter_route_contexts(app.routes):
        policy = _policy(context.dependant)
        for method in sorted(context.methods):
            yield Route(side, method, context.path, policy)


def _policy(dependant: Dependant) -> str:
    """The one policy that a route declares."""
    found = {POLICIES[dependant.call]} if dependant.call in POLICIES else set()
    for child in dependant.dependencies:
        found |= {_policy(child)} - {""}
    return found.pop() if found else ""


@asynccontextmanager
async def _opened(settings: Settings, owner_url: str) -> AsyncIterator[World]:
    async with open_context(settings) as context:
        owner = Database(owner_url, pool_size=1)
        jobs = JobRunner(context.database, context.store, context.base, context.now)
        apps: dict[Side, FastAPI] = {
            "tenant": create_app(context),
            "admin": create_admin_app(context),
        }
        clients = {
            side: httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://t")
            for side, app in apps.items()
        }
        yield World(context, owner, Operator(clients["admin"], jobs), clients)
        await owner.close()
        for client in clients.values():
            await client.aclose()


@contextmanager
def open_world(settings: Settings, owner_url: str, runner: asyncio.Runner) -> Iterator[World]:
    """A world on `runner`'s event loop, with an engine that answers whoever is let in."""
    opening = _opened(settings, owner_url)
    with StubEngine(settings.redis_url, reply=lambda request: request.prompt_token_ids[:1]):
        world = runner.run(opening.__aenter__())
        try:
            yield world
        finally:
            runner.run(opening.__aexit__(None, None, None))
