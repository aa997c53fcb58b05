"""What is looked at where a tenant comes under a plan, or under other terms.

Knows nothing of HTTP. Invariant: all tenants' reserved shares together are never more than the
whole, however many changes are made at once: else no queue could keep them.
"""

from __future__ import annotations

from sqlalchemy.ext.asyncio import AsyncSession

from app.adapters.names import is_adapter_name
from app.db import operator_scope
from app.errors import ConflictError, NotFoundError
from app.plans.repository import PlanRepository
from app.tables import Plan

ROUNDING = 1e-9  # of shares that were added up: ten times 0.1 is the whole


async def find_plan(session: AsyncSession, name: str) -> Plan:
    """Leaves the session in the operator's scope. Raises NotFoundError."""
    await operator_scope(session)
    plan = await PlanRepository(session).get(name) if is_adapter_name(name) else None
    if plan is None:
        raise NotFoundError("No such plan.", param="plan")
    return plan


async def lock_shares(session: AsyncSession) -> None:
    """Whoever may change a reserved share does so in turn; call it before anything is read."""
    await PlanRepository(session).lock_shares()


async def check_shares(session: AsyncSession) -> None:
    """Leaves the session in the operator's scope. Raises ConflictError (`share_exceeded`)."""
    await operator_scope(session)
    total = await PlanRepository(session).sum_shares()
    if total > 1 + ROUNDING:
        raise ConflictError(
            f"All tenants' reserved shares together would be {total:.6g} of what there is.",
            code="share_exceeded",
            param="reserved_share",
            details={"reserved": total},
        )
