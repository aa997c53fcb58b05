"""The SQL of tenants.

Knows nothing of rules. Invariant: the session is in the operator's scope, which shows tenants and
nothing that they own, except in `remove`, which runs in the tenant's own.
"""

from __future__ import annotations

from sqlalchemy import delete, select
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.ext.asyncio import AsyncSession

from app.tables import Tenant
from app.tenants.schemas import TenantCreate


class TenantRepository:
    def __init__(self, session: AsyncSession) -> None:
        self._session = session

    async def add(self, tenant_id: str, body: TenantCreate) -> Tenant | None:
        """The new row; None where the slug or the external id is taken."""
        return await self._session.scalar(
            insert(Tenant)
            .values(
                id=tenant_id,
                slug=body.slug,
                external_id=body.external_id,
                labels=body.metadata,
                concurrency=body.limits.concurrency,
                queue_depth=body.limits.queue_depth,
            )
            .on_conflict_do_nothing()
            .returning(Tenant)
        )

    async def get_by_id(self, tenant_id: str) -> Tenant | None:
        return await self._session.scalar(select(Tenant).where(Tenant.id == tenant_id))

    async def get_by_slug(self, slug: str) -> Tenant | None:
        return await self._session.scalar(select(Tenant).where(Tenant.slug == slug))

    async def list_page(self, after: str | None, limit: int) -> list[Tenant]:
        query = select(Tenant)
        if after is not None:
            query = query.where(Tenant.id > after)
        return list(await self._session.scalars(query.order_by(Tenant.id).limit(limit)))

    async def remove(self, tenant_id: str) -> None:
        """Remove the tenant; keys, adapters, versions and aliases go with it."""
        await self._session.execute(delete(Tenant).where(Tenant.id == tenant_id))
