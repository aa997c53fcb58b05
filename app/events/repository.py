"""The SQL of the feed: the audit log of all tenants in the order of its commits.

Knows nothing of what happened. Invariant: the session is in the operator's scope; an event that is
committed later has a greater number (migration 0006), so that a reader who has read up to a number
has missed nothing below it.
"""

from __future__ import annotations

from sqlalchemy import select
from sqlalchemy.ext.asyncio import AsyncSession

from app.adapters.tables import Event
from app.db import operator_scope


async def list_events(session: AsyncSession, after: int, limit: int) -> list[Event]:
    """Events with a greater number than `after`, in order. Sets the operator's scope."""
    await operator_scope(session)
    query = select(Event).where(Event.seq > after).order_by(Event.seq).limit(limit)
    return list(await session.scalars(query))
