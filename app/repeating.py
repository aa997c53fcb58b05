"""A worker's job, again and again until the worker is told to stop.

Knows nothing of what the job is. Invariants: once told to stop, nothing is begun and nothing waited
for; what a job says it may fail of is logged and tried again, anything else is raised.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress

import structlog

from app.errors import UnavailableError

log = structlog.get_logger()


async def repeat(
    work: Callable[[], Awaitable[object]],
    stopping: asyncio.Event,
    interval_s: float,
    *,
    postponed: str,
    on: tuple[type[Exception], ...] = (UnavailableError,),
) -> None:
    """Do `work` until `stopping`: at once again while it returns something true, which says that
    there is more of it, else after `interval_s`.

    postponed: the event that is logged when it fails of `on`.
    """
    while not stopping.is_set():
        try:
            if await work():
                continue
        except on as error:
            log.warning(postponed, error=str(error))
        await rest(stopping, interval_s)


async def rest(stopping: asyncio.Event, seconds: float) -> None:
    """Wait, unless it is time to stop."""
    with suppress(TimeoutError):
        await asyncio.wait_for(stopping.wait(), seconds)
