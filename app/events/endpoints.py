"""`/admin/v1/events`: everything that changed, for all tenants, in the order of its commits."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Depends, Query

from app.auth import require_operator
from app.events.repository import list_events
from app.events.schemas import EventList, EventView
from app.session import RequestSession

MAX_EVENTS = 1000

router = APIRouter(prefix="/events", dependencies=[Depends(require_operator)])


@router.get("")
async def get_events(
    session: RequestSession,
    after: Annotated[int, Query(ge=0)] = 0,
    limit: Annotated[int, Query(ge=1, le=MAX_EVENTS)] = 100,
) -> EventList:
    rows = await list_events(session, after, limit + 1)
    shown = [EventView.of(row) for row in rows[:limit]]
    return EventList(data=shown, has_more=len(rows) > limit, next=shown[-1].seq if shown else after)
