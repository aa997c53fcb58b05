"""How an API process goes: it takes no new clients' connections, and waits for those it has.

Not ready at once, so that proxies look elsewhere; for `delay_s` it still serves whoever has not
heard; then until no request runs any more, at most `limit_s`. Knows nothing of HTTP frameworks or
signals. Invariant: once begun it is never taken back.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from contextlib import suppress

POLL_S = 0.05


class Drain:
    """Of one process. `enter` and `leave` around every request of a tenant."""

    def __init__(
        self, *, delay_s: float, limit_s: float, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._delay_s = delay_s
        self._limit_s = limit_s
        self._clock = clock
        self._began_at: float | None = None
        self._is_hurried = False
        self._changed = asyncio.Event()
        self.num_in_flight = 0

    @property
    def is_draining(self) -> bool:
        return self._began_at is not None

    @property
    def is_over(self) -> bool:
        """Whether the process may end."""
        if self._began_at is None:
            return False
        elapsed_s = self._clock() - self._began_at
        is_idle = elapsed_s >= self._delay_s and self.num_in_flight == 0
        return self._is_hurried or is_idle or elapsed_s >= self._delay_s + self._limit_s

    def begin(self) -> None:
        if self._began_at is None:
            self._began_at = self._clock()

    def hurry(self) -> None:
        """Be over now, whatever runs."""
        self.begin()
        self._is_hurried = True
        self._changed.set()

    def enter(self) -> None:
        self.num_in_flight += 1

    def leave(self) -> None:
        self.num_in_flight -= 1
        self._changed.set()

    async def wait(self) -> None:
        """Until it is over."""
        while not self.is_over:
            self._changed.clear()
            with suppress(TimeoutError):
                await asyncio.wait_for(self._changed.wait(), POLL_S)
