"""Says whether what must be equal is: acceptances, ledger, roll-ups and exports.

Knows nothing of SQL or HTTP. Invariant: every difference is counted, and named up to a limit for
each kind.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any, Literal, Self

from pydantic import BaseModel
from sqlalchemy.ext.asyncio import AsyncSession

from app.bodies import Timestamp
from app.usage.reconcile_repository import DIFFERENCES, Difference, ReconcileRepository


class DifferenceView(BaseModel):
    kind: str
    tenant_id: str
    request_id: str | None
    hour: Timestamp
    expected: dict[str, Any] | None
    found: dict[str, Any] | None

    @classmethod
    def of(cls, difference: Difference) -> Self:
        return cls(
            kind=difference.kind,
            tenant_id=difference.tenant_id,
            request_id=difference.request_id,
            hour=difference.hour,
            expected=difference.expected,
            found=difference.found,
        )


class Reconciliation(BaseModel):
    """`pending` is on its way and no difference: it is looked at when it has arrived."""

    object: Literal["reconciliation"] = "reconciliation"
    start_time: Timestamp
    end_time: Timestamp
    is_balanced: bool
    totals: dict[str, dict[str, int]]
    pending: dict[str, int]
    num_differences: dict[str, int]
    differences: list[DifferenceView]


async def reconcile(
    session: AsyncSession,
    since: datetime,
    until: datetime,
    *,
    tenant_id: str | None,
    limit: int,
) -> Reconciliation:
    """Of what was accepted in [since, until), in whole hours, by one tenant or by all."""
    repository = ReconcileRepository(session, since, until, tenant_id)
    counts, named = {}, []
    for kind in DIFFERENCES:
        counts[kind], differences = await repository.differences(kind, limit)
        named += [DifferenceView.of(difference) for difference in differences]
    totals = await repository.totals()
    return Reconciliation(
        start_time=since,
        end_time=until,
        is_balanced=not any(counts.values()),
        totals={
            "accepted": totals.accepted,
            "ledger": totals.ledger,
            "rolled_up": totals.rolled_up,
            "exported": totals.exported,
        },
        pending={
            "open_requests": totals.accepted["num_open"],
            "stale_hours": totals.num_stale_hours,
            "exports": totals.exported["num_pending"],
        },
        num_differences=counts,
        differences=named,
    )
