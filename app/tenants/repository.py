"""The SQL of tenants.

Knows nothing of rules. Invariant: the session is in the operator's scope, which shows tenants and
nothing that they own, except in `remove` and `count_owned`, which run in the tenant's own.
"""

from __future__ import annotations

from sqlalchemy import delete, func, select
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.exc import IntegrityError
from sqlalchemy.ext.asyncio import AsyncSession

from app.batches.tables import Batch
from app.files.tables import StoredFile
from app.pages import PageQuery
from app.tables import Adapter, AdapterVersion, ApiKey, Tenant
from app.tenants.schemas import TenantCreate


class TenantRepository:
    def __init__(self, session: AsyncSession) -> None:
        self._session = session

    async def add(self, tenant_id: str, body: TenantCreate, plan_id: str | None) -> Tenant | None:
        """The new row; None where the slug or the external id is taken."""
        return await self._session.scalar(
            insert(Tenant)
            .values(
                id=tenant_id,
                slug=body.slug,
                external_id=body.external_id,
                labels=body.metadata,
                plan_id=plan_id,
                limits=body.limits.stored(),
                concurrency=body.limits.concurrency or None,
                queue_depth=body.limits.queue_depth or None,
                allowed_bases=body.allowed_bases,
                stores_prompts=body.data_policy.store_prompts,
                prompt_retention_days=body.data_policy.retention_days,
            )
            .on_conflict_do_nothing()
            .returning(Tenant)
        )

    async def get_by_id(self, tenant_id: str) -> Tenant | None:
        return await self._session.scalar(select(Tenant).where(Tenant.id == tenant_id))

    async def get_by_slug(self, slug: str) -> Tenant | None:
        return await self._session.scalar(select(Tenant).where(Tenant.slug == slug))

    async def lock(self, tenant_id: str) -> Tenant | None:
        """The row, locked and read afresh: whoever changes a tenant comes in turn."""
        return await self._session.scalar(
            select(Tenant)
            .where(Tenant.id == tenant_id)
            .with_for_update()
            .execution_options(populate_existing=True)
        )

    async def list_page(self, page: PageQuery) -> list[Tenant]:
        query = page.narrow(select(Tenant), Tenant.id)
        return list(await self._session.scalars(query))

    async def try_flush(self) -> bool:
        """Write what was changed; False where an external id is another tenant's."""
        try:
            await self._session.flush()
        except IntegrityError:
            return False
        return True

    async def remove(self, tenant_id: str) -> None:
        """Remove the tenant; keys, adapters, versions and aliases go with it."""
        await self._session.execute(delete(Tenant).where(Tenant.id == tenant_id))

    async def count_owned(self, tenant_id: str) -> dict[str, int]:
        """How many keys, adapters, versions (of how many bytes), files and batches it has."""
        counts = {
            name: await self._session.scalar(
                select(func.count()).select_from(table).where(table.tenant_id == tenant_id)
            )
            for name, table in (
                ("keys", ApiKey),
                ("adapters", Adapter),
                ("files", StoredFile),
                ("batches", Batch),
            )
        }
        row = await self._session.execute(
            select(func.count(), func.coalesce(func.sum(AdapterVersion.num_bytes), 0)).where(
                AdapterVersion.tenant_id == tenant_id
            )
        )
        num_versions, num_bytes = row.one()
        return {
            "keys": counts["keys"] or 0,
            "adapters": counts["adapters"] or 0,
            "versions": num_versions,
            "bytes": int(num_bytes),
            "files": counts["files"] or 0,
            "batches": counts["batches"] or 0,
        }
