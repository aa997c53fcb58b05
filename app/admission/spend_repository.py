"""The SQL of what was spent: kept with the ledger, and read by whoever tells Redis of it.

Knows nothing of Redis or of limits. Invariants: `SpendRepository` works in the transaction, and
under the lock, in which the ledger is written; `read_spend` sees a tenant's spend no later than its
open requests, so that what ended in between is missed by neither, and noticed by its version.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from datetime import date, timedelta
from typing import Any

from sqlalchemy import func, select, text, tuple_
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.ext.asyncio import AsyncSession

from app.admission.tables import Spend
from app.db import tenant_scope
from app.tables import AcceptedRequest

# More than two months of days, and longer than Redis keeps them: no figure goes back there.
_DAYS_READ = 70
_EPOCH = date(1970, 1, 1)
_NEXT_VERSION = text("SELECT nextval('spend_version')")

RequestKey = tuple[str, str]
SpendKey = tuple[str, str, date]


@dataclass(frozen=True, slots=True)
class Reserved:
    """An accepted request: what was kept of its admission, and whether it pays for its prompt."""

    tenant_id: str
    request_id: str
    decision: Mapping[str, Any]
    is_first_choice: bool


@dataclass(frozen=True, slots=True)
class SubjectSpend:
    """What one subject spent: the ledger's version, and amounts as `spent:<subject>` names them."""

    subject: str
    version: int
    amounts: dict[str, int]


class SpendRepository:
    """The session is in the ledger's scope, and holds its lock."""

    def __init__(self, session: AsyncSession) -> None:
        self._session = session

    async def find_reserved(self, requests: Collection[RequestKey]) -> list[Reserved]:
        """Of these requests, those of which an admission was kept."""
        if not requests:
            return []
        key = tuple_(AcceptedRequest.tenant_id, AcceptedRequest.request_id)
        return await _reserved(self._session, key.in_(list(requests)))

    async def find_open(self, request_ids: Collection[str]) -> set[str]:
        """Of these requests, those that have been accepted and have not ended."""
        query = select(AcceptedRequest.request_id).where(
            AcceptedRequest.request_id.in_(request_ids), AcceptedRequest.state == "accepted"
        )
        return set(await self._session.scalars(query))

    async def add(self, amounts: Mapping[SpendKey, tuple[int, int]]) -> None:
        """Add (tokens, billionths) to what was spent. All of it gets one new version."""
        if not amounts:
            return
        version = await self._session.scalar(_NEXT_VERSION)
        rows = [
            {
                "tenant_id": tenant_id,
                "subject": subject,
                "day": day,
                "num_tokens": num_tokens,
                "cost_nanos": cost_nanos,
                "version": version,
            }
            for (tenant_id, subject, day), (num_tokens, cost_nanos) in amounts.items()
        ]
        statement = insert(Spend).values(rows)
        new = statement.excluded
        await self._session.execute(
            statement.on_conflict_do_update(
                index_elements=["tenant_id", "subject", "day"],
                set_={
                    "num_tokens": Spend.num_tokens + new.num_tokens,
                    "cost_nanos": Spend.cost_nanos + new.cost_nanos,
                    "version": new.version,
                },
            )
        )

    async def figures(self, subjects: Collection[tuple[str, str]]) -> list[SubjectSpend]:
        """What these (tenant, subject) have spent lately."""
        if not subjects:
            return []
        key = tuple_(Spend.tenant_id, Spend.subject)
        return await _figures(self._session, key.in_(list(subjects)))


async def read_spend(
    session: AsyncSession, tenant_id: str
) -> tuple[list[SubjectSpend], list[Reserved]]:
    """What a tenant, its keys and adapters spent, and its requests that have not ended."""
    await tenant_scope(session, tenant_id)
    figures = await _figures(session, Spend.tenant_id == tenant_id)
    still_open = await _reserved(
        session, AcceptedRequest.tenant_id == tenant_id, AcceptedRequest.state == "accepted"
    )
    return figures, still_open


async def _reserved(session: AsyncSession, *conditions: Any) -> list[Reserved]:
    query = select(
        AcceptedRequest.tenant_id,
        AcceptedRequest.request_id,
        AcceptedRequest.decision,
        AcceptedRequest.is_first_choice,
    ).where(AcceptedRequest.decision.is_not(None), *conditions)
    return [Reserved(*row) for row in await session.execute(query)]


async def _figures(session: AsyncSession, *conditions: Any) -> list[SubjectSpend]:
    since = func.current_date() - timedelta(days=_DAYS_READ)
    query = select(Spend.subject, Spend.day, Spend.num_tokens, Spend.cost_nanos, Spend.version)
    rows = await session.execute(query.where(Spend.day >= since, *conditions))
    versions: dict[str, int] = defaultdict(int)
    amounts: dict[str, dict[str, int]] = defaultdict(lambda: defaultdict(int))
    for subject, day, num_tokens, cost_nanos, version in rows:
        versions[subject] = max(versions[subject], version)
        month = f"{day:%Y%m}"
        amounts[subject][f"d{day_number(day)}"] += num_tokens
        amounts[subject][f"m{month}"] += num_tokens
        amounts[subject][f"c{month}"] += cost_nanos
    return [SubjectSpend(each, versions[each], dict(amounts[each])) for each in versions]


def day_number(day: date) -> int:
    """Days since 1970, as the counters have them."""
    return (day - _EPOCH).days


def date_of(day_number: int) -> date:
    return _EPOCH + timedelta(days=day_number)


def totals(amounts: Iterable[tuple[SpendKey, int, int]]) -> dict[SpendKey, tuple[int, int]]:
    """(tokens, billionths) by key."""
    found: dict[SpendKey, tuple[int, int]] = {}
    for key, num_tokens, cost_nanos in amounts:
        held = found.get(key, (0, 0))
        found[key] = held[0] + num_tokens, held[1] + cost_nanos
    return found
