"""The SQL of who runs which batch.

Knows nothing of lines. Invariants: a batch is one worker's at a time; a worker that dies loses it
when its claim runs out; whoever lost a claim writes nothing more, since whatever is written about a
batch is written under the lock of its claim.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta

from sqlalchemy import Select, and_, delete, func, select, update
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import aliased

from app.batches.tables import Batch, BatchClaim
from app.db import tenant_scope, worker_scope


class ClaimLostError(Exception):
    """Another worker has the batch, or it is gone."""


@dataclass(frozen=True, slots=True)
class Claim:
    """One worker's turn with one batch."""

    batch_id: str
    tenant_id: str
    claimed_by: str
    num_claims: int


async def claim_batch(session: AsyncSession, worker: str, hold_s: float) -> Claim | None:
    """The batch that has waited longest, of a tenant of which no other one is being run.

    Sets the worker's scope; the caller commits.
    """
    await worker_scope(session)
    row = await session.scalar(_next())
    if row is None:
        return None
    row.claimed_by = worker
    row.num_claims += 1
    row.claimed_until = func.now() + timedelta(seconds=hold_s)
    await session.flush()
    return Claim(row.batch_id, row.tenant_id, worker, row.num_claims)


class ClaimRepository:
    """Enters the scope of the claim's tenant with every call."""

    def __init__(self, session: AsyncSession, claim: Claim) -> None:
        self._session = session
        self._claim = claim
        self._is_mine = and_(
            BatchClaim.tenant_id == claim.tenant_id,
            BatchClaim.batch_id == claim.batch_id,
            BatchClaim.claimed_by == claim.claimed_by,
            BatchClaim.num_claims == claim.num_claims,
        )

    async def lock(self) -> Batch:
        """The batch, while nobody else may write about it. Raises ClaimLostError."""
        await tenant_scope(self._session, self._claim.tenant_id)
        found = await self._session.scalar(
            select(BatchClaim.batch_id).where(self._is_mine).with_for_update()
        )
        if found is None:
            raise ClaimLostError(self._claim.batch_id)
        batch = await self._session.scalar(
            select(Batch)
            .where(Batch.tenant_id == self._claim.tenant_id, Batch.id == found)
            .with_for_update()
            .execution_options(populate_existing=True)
        )
        assert batch is not None, "a claim goes with its batch"
        return batch

    async def renew(self, hold_s: float) -> str:
        """Hold the batch for longer; its status. Raises ClaimLostError."""
        await tenant_scope(self._session, self._claim.tenant_id)
        await self._set_until(hold_s, is_held=True)
        status = await self._session.scalar(
            select(Batch.status).where(
                Batch.tenant_id == self._claim.tenant_id, Batch.id == self._claim.batch_id
            )
        )
        assert status is not None, "a claim goes with its batch"
        return status

    async def release(self, rest_s: float) -> None:
        """Whoever is free may take it, after `rest_s`. Raises ClaimLostError."""
        await tenant_scope(self._session, self._claim.tenant_id)
        await self._set_until(rest_s, is_held=False)

    async def end(self) -> None:
        """The batch has ended. Under the lock."""
        await self._session.execute(delete(BatchClaim).where(self._is_mine))

    async def _set_until(self, seconds: float, *, is_held: bool) -> None:
        changed = await self._session.scalar(
            update(BatchClaim)
            .where(self._is_mine)
            .values(
                claimed_by=self._claim.claimed_by if is_held else None,
                claimed_until=func.now() + timedelta(seconds=seconds),
            )
            .returning(BatchClaim.batch_id)
        )
        if changed is None:
            raise ClaimLostError(self._claim.batch_id)


def _next() -> Select[BatchClaim]:
    other = aliased(BatchClaim)
    is_other_run = (
        select(other.batch_id)
        .where(
            other.tenant_id == BatchClaim.tenant_id,
            other.batch_id != BatchClaim.batch_id,
            other.claimed_by.is_not(None),
            other.claimed_until > func.now(),
        )
        .exists()
    )
    return (
        select(BatchClaim)
        .where(BatchClaim.claimed_until <= func.now(), ~is_other_run)
        .order_by(BatchClaim.claimed_until, BatchClaim.batch_id)
        .limit(1)
        .with_for_update(skip_locked=True, of=BatchClaim)
    )
