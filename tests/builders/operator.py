"""What an operator does over REST, in one line each, for tests that need it done first."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import httpx
from sqlalchemy import update

from app.adapters.jobs import JobRunner
from app.adapters.jobs_repository import REMOVAL_DELAY_S
from app.db import worker_scope
from app.tables import AdapterJob

ADMIN_KEY = "admin-key-of-the-tests"
OPERATOR = {"authorization": f"Bearer {ADMIN_KEY}"}
BOTH_SCOPES = ("inference", "adapters:write")


@dataclass(frozen=True, slots=True)
class Tenant:
    """A tenant with one key. `headers` is what its developer sends."""

    id: str
    slug: str
    key_id: str
    secret: str

    @property
    def headers(self) -> dict[str, str]:
        return {"authorization": f"Bearer {self.secret}"}


class Operator:
    def __init__(self, admin: httpx.AsyncClient, jobs: JobRunner) -> None:
        self._admin = admin
        self._jobs = jobs

    async def call(self, method: str, path: str, **options: Any) -> httpx.Response:
        """Any admin call, with the operator's key; `path` follows `/admin/v1`."""
        return await self._admin.request(method, f"/admin/v1{path}", headers=OPERATOR, **options)

    async def done(self, method: str, path: str, **options: Any) -> dict[str, Any]:
        """The same, and its body; it must succeed."""
        response = await self.call(method, path, **options)
        assert response.is_success, response.text
        body = response.json()
        assert isinstance(body, dict)
        return body

    async def new_tenant(
        self, slug: str, *, scopes: Sequence[str] = BOTH_SCOPES, **fields: Any
    ) -> Tenant:
        tenant = await self.done("POST", "/tenants", json={"slug": slug, **fields})
        key = await self.new_key(tenant["id"], scopes=scopes)
        return Tenant(tenant["id"], slug, key["id"], key["secret"])

    async def new_key(
        self, tenant: str, *, scopes: Sequence[str] = BOTH_SCOPES, **fields: Any
    ) -> dict[str, Any]:
        body = {"scopes": list(scopes), **fields}
        return await self.done("POST", f"/tenants/{tenant}/keys", json=body)

    async def new_adapter(self, tenant: str, name: str) -> dict[str, Any]:
        return await self.done("POST", f"/tenants/{tenant}/adapters", json={"name": name})

    async def upload(
        self, tenant: str, adapter: str, files: Mapping[str, bytes], **told: Any
    ) -> httpx.Response:
        """told: of the query, such as `strict`."""
        return await self.call(
            "POST",
            f"/tenants/{tenant}/adapters/{adapter}/versions",
            params=told,
            files={name: (name, content) for name, content in files.items()},
        )

    async def push(self, tenant: str, adapter: str, files: Mapping[str, bytes]) -> dict[str, Any]:
        """Upload a version and let the worker verify it."""
        response = await self.upload(tenant, adapter, files)
        assert response.status_code == 201, response.text
        await self.run_jobs()
        version = response.json()["version"]
        return await self.done("GET", f"/tenants/{tenant}/adapters/{adapter}/versions/{version}")

    async def run_jobs(self) -> None:
        """Do everything that is due for a worker."""
        while await self._jobs.run_next():
            pass

    async def run_jobs_after(self, seconds: float = REMOVAL_DELAY_S) -> None:
        """Let time pass for the jobs that wait, and do what is due then."""
        async with self._jobs.database.session() as session:
            await worker_scope(session)
            passed = timedelta(seconds=seconds)
            await session.execute(
                update(AdapterJob).values(not_before=AdapterJob.not_before - passed)
            )
            await session.commit()
        await self.run_jobs()
