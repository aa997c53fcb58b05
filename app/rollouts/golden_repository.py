"""The SQL of rollouts whose golden prompts wait to be asked.

Knows nothing of how they are asked. Invariants: every query but `list_unasked` starts from the
tenant, and the session is in its scope; prompts are a worker's until the time that it claimed them
till, and whoever writes what came of them says which time that was.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from sqlalchemy import select, update
from sqlalchemy.dialects.postgresql import distinct_on
from sqlalchemy.ext.asyncio import AsyncSession

from app.db import worker_scope
from app.rollouts.tables import Rollout

RUNNING = "running"


async def list_unasked(session: AsyncSession, now: datetime) -> dict[str, str]:
    """Of each tenant the rollout whose prompts have waited longest, those first that waited longest
    of all. Sets the worker's scope.
    """
    await worker_scope(session)
    longest = (
        select(Rollout.tenant_id, Rollout.id, Rollout.golden_due_at)
        .where(Rollout.state == RUNNING, Rollout.golden_due_at <= now)
        .ext(distinct_on(Rollout.tenant_id))
        .order_by(Rollout.tenant_id, Rollout.golden_due_at)
        .subquery()
    )
    rows = await session.execute(
        select(longest.c.tenant_id, longest.c.id).order_by(longest.c.golden_due_at)
    )
    return {row.tenant_id: row.id for row in rows}


async def claim_golden(
    session: AsyncSession, tenant_id: str, rollout_id: str, now: datetime, until: datetime
) -> Rollout | None:
    """The rollout, whose prompts nobody else asks until then; None where somebody was quicker."""
    return await session.scalar(
        update(Rollout)
        .where(
            Rollout.tenant_id == tenant_id,
            Rollout.id == rollout_id,
            Rollout.state == RUNNING,
            Rollout.golden_due_at <= now,
        )
        .values(golden_due_at=until)
        .returning(Rollout)
        .execution_options(populate_existing=True)
    )


async def change_golden(
    session: AsyncSession,
    tenant_id: str,
    rollout_id: str,
    until: datetime,
    values: Mapping[str, Any],
) -> bool:
    """Change what was claimed till `until`; False where it is so no more."""
    found = await session.scalar(
        update(Rollout)
        .where(
            Rollout.tenant_id == tenant_id,
            Rollout.id == rollout_id,
            Rollout.state == RUNNING,
            Rollout.golden_due_at == until,
        )
        .values(values)
        .returning(Rollout.id)
        .execution_options(synchronize_session=False)
    )
    return found is not None
