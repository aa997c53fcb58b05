"""Waits for the check of a version that was uploaded, for whoever asks for it with `?wait=`.

Knows nothing of how it is checked. Invariant: no database connection is held between two looks.
"""

from __future__ import annotations

import asyncio
import time
from typing import Annotated

from fastapi import Query

from app.adapters.schemas import VersionView
from app.adapters.service import find_adapter, find_version
from app.adapters.states import VERIFYING
from app.context import AppContext
from app.db import tenant_scope

MAX_WAIT_S = 120.0
POLL_INTERVAL_S = 0.1

Wait = Annotated[float, Query(ge=0, le=MAX_WAIT_S)]


async def wait_until_verified(
    context: AppContext, tenant_id: str, shown: VersionView, wait_s: float
) -> VersionView:
    """The version once its check is done, or as it is after `wait_s`. Raises NotFoundError."""
    deadline = time.monotonic() + wait_s
    while shown.state == VERIFYING and time.monotonic() < deadline:
        await asyncio.sleep(POLL_INTERVAL_S)
        async with context.database.session() as session:
            await tenant_scope(session, tenant_id)
            row = await find_adapter(session, tenant_id, shown.adapter_id)
            shown = VersionView.of(await find_version(session, tenant_id, row, shown.id))
    return shown
