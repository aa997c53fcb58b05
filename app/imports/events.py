"""An import as server-sent events: one when it is asked for, one for each change, till it ends.

Knows nothing of who runs it. Invariant: no database connection is held between two looks.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator

from app.context import AppContext
from app.db import tenant_scope
from app.errors import ApiError
from app.imports.repository import ImportRepository
from app.imports.schemas import ImportView

POLL_INTERVAL_S = 0.5
KEEPALIVE_S = 15.0
LIMIT_S = 3600.0


async def import_events(
    context: AppContext, tenant_id: str, first: ImportView
) -> AsyncIterator[bytes]:
    """`event: <state>`, `data: <the import>`. Ends with the import, with a drain, or in an hour."""
    shown = first
    yield _event(shown)
    ends_at = time.monotonic() + LIMIT_S
    silent_since = time.monotonic()
    while shown.ended_at is None and time.monotonic() < ends_at:
        await asyncio.sleep(POLL_INTERVAL_S)
        if context.drain.is_draining:
            return
        found = await _look(context, tenant_id, shown)
        if found is None:  # deleted, or the registry is away: the client may ask again
            return
        if found != shown:
            shown = found
            silent_since = time.monotonic()
            yield _event(shown)
        elif time.monotonic() - silent_since > KEEPALIVE_S:
            silent_since = time.monotonic()
            yield b": keepalive\n\n"


async def _look(context: AppContext, tenant_id: str, shown: ImportView) -> ImportView | None:
    try:
        async with context.database.session() as session:
            await tenant_scope(session, tenant_id)
            job = await ImportRepository(session, tenant_id).get(shown.adapter_id, shown.id)
    except ApiError:
        return None
    return None if job is None else ImportView.of(job)


def _event(shown: ImportView) -> bytes:
    return f"event: {shown.state}\ndata: {shown.model_dump_json()}\n\n".encode()
