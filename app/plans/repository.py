"""The SQL of plans, and of what tenants, keys and adapters are limited to.

Knows nothing of what a limit means. Invariant: plans are written in the operator's scope; a
tenant's, key's or adapter's limits in its tenant's.
"""

from __future__ import annotations

from typing import Any

from sqlalchemy import ColumnElement, delete, func, select, text
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.ext.asyncio import AsyncSession

from app.pages import PageQuery
from app.tables import ApiKey, Plan, Tenant

_LOCK_SHARES = text("SELECT pg_advisory_xact_lock(:number)")
_SHARES = 0x7E4F02A  # any number that nobody else locks in this database


class PlanRepository:
    """The session is in the operator's scope."""

    def __init__(self, session: AsyncSession) -> None:
        self._session = session

    async def add(self, plan_id: str, name: str, values: dict[str, Any]) -> Plan | None:
        """The new row; None where the name is taken."""
        return await self._session.scalar(
            insert(Plan)
            .values(id=plan_id, name=name, **values)
            .on_conflict_do_nothing()
            .returning(Plan)
        )

    async def get(self, name: str) -> Plan | None:
        return await self._session.scalar(select(Plan).where(Plan.name == name))

    async def list_page(self, page: PageQuery) -> list[Plan]:
        query = page.narrow(select(Plan), Plan.id)
        return list(await self._session.scalars(query))

    async def is_used(self, plan_id: str) -> bool:
        query = select(Tenant.id).where(Tenant.plan_id == plan_id).limit(1)
        return await self._session.scalar(query) is not None

    async def remove(self, plan_id: str) -> None:
        await self._session.execute(delete(Plan).where(Plan.id == plan_id))

    async def lock_shares(self) -> None:
        """Until the transaction ends nobody else changes what is reserved."""
        await self._session.execute(_LOCK_SHARES, {"number": _SHARES})

    async def sum_shares(self) -> float:
        """The reserved shares of all tenants together, as they are in force."""
        share = func.coalesce(Tenant.reserved_share, Plan.reserved_share, 0.0)
        query = select(func.coalesce(func.sum(share), 0.0)).select_from(Tenant)
        total = await self._session.scalar(query.outerjoin(Plan, Plan.id == Tenant.plan_id))
        return float(total or 0.0)


async def plan_of(session: AsyncSession, tenant: Tenant) -> Plan | None:
    """The tenant's plan; the session is in a scope that shows the tenant."""
    if tenant.plan_id is None:
        return None
    return await session.scalar(select(Plan).where(Plan.id == tenant.plan_id))


async def lock_shared(session: AsyncSession, key: ApiKey) -> list[ApiKey]:
    """The key and all that are counted as one with it, locked in order and read afresh.

    In the tenant's scope. Empty, or without the key, where it was deleted meanwhile.
    """
    query = (
        select(ApiKey)
        .where(*_counted_as_one(key))
        .order_by(ApiKey.id)
        .with_for_update()
        .execution_options(populate_existing=True)
    )
    await session.execute(query)
    # NOTE: whoever makes one more of them has one locked. What was made while we waited for that
    # is seen by a second look alone.
    return list(await session.scalars(query))


def _counted_as_one(key: ApiKey) -> tuple[ColumnElement[bool], ...]:
    counted_as = func.coalesce(ApiKey.counted_as, ApiKey.id)
    return ApiKey.tenant_id == key.tenant_id, counted_as == (key.counted_as or key.id)
