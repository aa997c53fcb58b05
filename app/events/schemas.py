"""The feed as the admin API shows it."""

from __future__ import annotations

import json
from typing import Any, Literal, Self

from pydantic import BaseModel

from app.adapters.tables import Event
from app.bodies import Timestamp


class EventView(BaseModel):
    """`id` is the audit event's. `data`: what was shown after the change; null where it is gone."""

    object: Literal["event"] = "event"
    seq: int
    id: str
    type: str
    tenant_id: str
    object_id: str
    data: Any
    created: Timestamp

    @classmethod
    def of(cls, event: Event) -> Self:
        return cls(
            seq=event.seq,
            id=event.id,
            type=event.type,
            tenant_id=event.tenant_id,
            object_id=event.object_id,
            data=None if event.data is None else json.loads(event.data),
            created=event.created_at,
        )


class EventList(BaseModel):
    """`next`: the `after` of the next call; it stays as it was where nothing has happened."""

    object: Literal["list"] = "list"
    data: list[EventView]
    has_more: bool
    next: int
