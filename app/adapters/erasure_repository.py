"""The SQL of erasures: what was erased, of one tenant.

Knows nothing of how. Invariant: the query starts from the tenant, and the session is in its scope.
"""

from __future__ import annotations

from sqlalchemy import select
from sqlalchemy.ext.asyncio import AsyncSession

from app.adapters.tables import Erasure


async def list_erasures(
    session: AsyncSession, tenant_id: str, after: str | None, limit: int
) -> list[Erasure]:
    query = select(Erasure).where(Erasure.tenant_id == tenant_id)
    if after is not None:
        query = query.where(Erasure.id > after)
    return list(await session.scalars(query.order_by(Erasure.id).limit(limit)))
