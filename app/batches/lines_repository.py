"""The SQL of lines' answers, and of what becomes of the batch with them.

Knows nothing of what an answer says: it comes sealed. Invariants: a line is answered once, whoever
answers it again; the batch's counts are those of the answers that are here; all of it happens under
the lock of the claim, in the tenant's scope.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from sqlalchemy import delete, func, select
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.ext.asyncio import AsyncSession

from app.batches.tables import BatchLine


@dataclass(frozen=True, slots=True)
class SealedAnswer:
    number: int
    is_error: bool
    sealed: bytes


class LinesRepository:
    """Of one batch. The session is in its tenant's scope."""

    def __init__(self, session: AsyncSession, tenant_id: str, batch_id: str) -> None:
        self._session = session
        self._tenant_id = tenant_id
        self._batch_id = batch_id
        self._is_own = (BatchLine.tenant_id == tenant_id, BatchLine.batch_id == batch_id)

    async def numbers(self) -> set[int]:
        """Which lines have been answered."""
        return set(await self._session.scalars(select(BatchLine.number).where(*self._is_own)))

    async def add(self, answers: Sequence[SealedAnswer]) -> set[int]:
        """Write them down; the numbers of those that were not answered before."""
        rows = [
            {
                "batch_id": self._batch_id,
                "tenant_id": self._tenant_id,
                "number": each.number,
                "is_error": each.is_error,
                "sealed": each.sealed,
            }
            for each in answers
        ]
        added = await self._session.scalars(
            insert(BatchLine).values(rows).on_conflict_do_nothing().returning(BatchLine.number)
        )
        return set(added)

    async def count(self, *, is_error: bool) -> int:
        query = select(func.count()).select_from(BatchLine)
        found = await self._session.scalar(
            query.where(*self._is_own, BatchLine.is_error == is_error)
        )
        return found or 0

    async def list_page(self, *, is_error: bool, after: int, limit: int) -> list[SealedAnswer]:
        """In the order of the input."""
        rows = await self._session.execute(
            select(BatchLine.number, BatchLine.is_error, BatchLine.sealed)
            .where(*self._is_own, BatchLine.is_error == is_error, BatchLine.number > after)
            .order_by(BatchLine.number)
            .limit(limit)
        )
        return [SealedAnswer(*row) for row in rows]

    async def remove_all(self) -> None:
        await self._session.execute(delete(BatchLine).where(*self._is_own))
