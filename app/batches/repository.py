"""The SQL of batches as their tenants see them.

Knows nothing of how a batch is run. Invariant: every query names the tenant, in whose scope the
session is; a batch that has not ended has a claim (`app.batches.claims_repository`).
"""

from __future__ import annotations

from sqlalchemy import func, select, update
from sqlalchemy.ext.asyncio import AsyncSession

from app.batches.tables import Batch, BatchClaim
from app.pages import PageQuery

ENDED = ("failed", "completed", "expired", "cancelled")


class BatchRepository:
    """One tenant's batches. The session is in this tenant's scope."""

    def __init__(self, session: AsyncSession, tenant_id: str) -> None:
        self._session = session
        self._tenant_id = tenant_id

    async def add(self, batch: Batch) -> None:
        """A worker may take it as soon as this is committed."""
        assert batch.tenant_id == self._tenant_id
        self._session.add(batch)
        await self._session.flush()
        self._session.add(BatchClaim(batch_id=batch.id, tenant_id=self._tenant_id))
        await self._session.flush()
        await self._session.refresh(batch)  # what the table fills in

    async def get(self, batch_id: str) -> Batch | None:
        return await self._session.scalar(
            select(Batch).where(Batch.tenant_id == self._tenant_id, Batch.id == batch_id)
        )

    async def lock(self, batch_id: str) -> Batch | None:
        """The row, locked and read afresh."""
        return await self._session.scalar(
            select(Batch)
            .where(Batch.tenant_id == self._tenant_id, Batch.id == batch_id)
            .with_for_update()
            .execution_options(populate_existing=True)
        )

    async def list_page(self, page: PageQuery) -> list[Batch]:
        query = select(Batch).where(Batch.tenant_id == self._tenant_id)
        return list(await self._session.scalars(page.narrow(query, Batch.id)))

    async def count_unended(self) -> int:
        query = select(func.count()).select_from(BatchClaim)
        return await self._session.scalar(query.where(BatchClaim.tenant_id == self._tenant_id)) or 0

    async def wake(self, batch_id: str) -> None:
        """If it rests, it is due now."""
        await self._session.execute(
            update(BatchClaim)
            .where(
                BatchClaim.tenant_id == self._tenant_id,
                BatchClaim.batch_id == batch_id,
                BatchClaim.claimed_by.is_(None),
            )
            .values(claimed_until=func.now())
        )


async def is_input_in_use(session: AsyncSession, tenant_id: str, file_id: str) -> bool:
    """Whether a batch that has not ended reads this file. In the tenant's scope."""
    found = await session.scalar(
        select(Batch.id)
        .where(
            Batch.tenant_id == tenant_id,
            Batch.input_file_id == file_id,
            Batch.status.not_in(ENDED),
        )
        .limit(1)
    )
    return found is not None
