"""The SQL of erasures: what was erased, of one tenant.

Knows nothing of how. Invariant: the query starts from the tenant, and the session is in its scope.
"""

from __future__ import annotations

from sqlalchemy import select
from sqlalchemy.ext.asyncio import AsyncSession

from app.adapters.tables import Erasure
from app.pages import PageQuery


async def list_erasures(session: AsyncSession, tenant_id: str, page: PageQuery) -> list[Erasure]:
    query = page.narrow(select(Erasure).where(Erasure.tenant_id == tenant_id), Erasure.id)
    return list(await session.scalars(query))
