"""The SQL of what a worker's metrics are asked for: how much waits in the registry.

Knows nothing of Prometheus. Invariant: each look is one statement in a scope of its own, and none
of them locks anything.
"""

from __future__ import annotations

from dataclasses import dataclass

from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncSession

from app.db import ledger_scope, worker_scope

_JOBS = text("""
SELECT kind, count(*) AS num, extract(epoch FROM now() - min(not_before)) AS oldest_s
FROM adapter_jobs WHERE not_before <= now() GROUP BY kind
""")
_EXPORTS = text("""
SELECT count(*) AS num, coalesce(extract(epoch FROM now() - min(not_before)), 0) AS oldest_s
FROM usage_outbox WHERE revision > delivered_revision AND not_before <= now()
""")

_BATCHES = text("""
SELECT count(*) AS num, coalesce(extract(epoch FROM now() - min(claimed_until)), 0) AS oldest_s
FROM batch_claims WHERE claimed_until <= now()
""")


@dataclass(frozen=True, slots=True)
class Waiting:
    """How many things of one kind are due, and for how long the first of them has been."""

    num: int
    oldest_s: float


async def waiting_jobs(session: AsyncSession) -> dict[str, Waiting]:
    """Adapters' jobs that are due, by kind. Sets the worker's scope."""
    await worker_scope(session)
    rows = (await session.execute(_JOBS)).all()
    return {row.kind: Waiting(row.num, float(row.oldest_s)) for row in rows}


async def waiting_exports(session: AsyncSession) -> Waiting:
    """Events of usage that are due to be exported. Sets the ledger's scope."""
    await ledger_scope(session)
    row = (await session.execute(_EXPORTS)).one()
    return Waiting(row.num, float(row.oldest_s))


async def waiting_batches(session: AsyncSession) -> Waiting:
    """Batches that no worker runs, and that are due. Sets the worker's scope."""
    await worker_scope(session)
    row = (await session.execute(_BATCHES)).one()
    return Waiting(row.num, float(row.oldest_s))
