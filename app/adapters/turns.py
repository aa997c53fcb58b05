"""Turns at what a process does a few times at once, such as checking an adapter.

Knows nothing of what it is. Invariant: whoever waits for a turn has one, or is told in time that
there is none.
"""

from __future__ import annotations

import asyncio
import weakref
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from app.errors import UnavailableError

MAX_AT_ONCE = 2
TIMEOUT_S = 120.0


class Turns:
    """Of one process: `max_at_once` have one, and who waits for one waits `timeout_s` at most."""

    def __init__(self, max_at_once: int = MAX_AT_ONCE, timeout_s: float = TIMEOUT_S) -> None:
        self._max_at_once = max_at_once
        self._timeout_s = timeout_s
        self._slots: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Semaphore]
        self._slots = weakref.WeakKeyDictionary()

    @asynccontextmanager
    async def take(self) -> AsyncIterator[None]:
        """Raises UnavailableError `overloaded`."""
        loop = asyncio.get_running_loop()
        slots = self._slots.setdefault(loop, asyncio.Semaphore(self._max_at_once))
        try:
            async with asyncio.timeout(self._timeout_s):
                await slots.acquire()
        except TimeoutError as error:
            raise UnavailableError(
                "Too many adapters are on their way in. Please try again later.",
                code="overloaded",
                internal=f"no turn within {self._timeout_s:g} s",
            ) from error
        try:
            yield
        finally:
            slots.release()
