"""Turns requests away while this process cannot keep up with those it has.

The first thing that happens to a request, before its body is read or its key looked up: what is
refused costs next to nothing, so that what is let in is served. How far behind the process is, is
how late its event loop comes to a timer. Knows nothing of routes, keys or tenants, only that two
requests show the same key. Invariant: who has fewer requests open than the others have on average
is let in, so that nobody is shut out by somebody else's crowd.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable

import structlog
from starlette.types import ASGIApp, Receive, Scope, Send

from app.error_handlers import error_response
from app.errors import UnavailableError

log = structlog.get_logger()

TICK_S = 0.05
KEPT_A_TICK = 0.9
RETRY_AFTER_S = 2.0
_KEY_HEADERS = (b"authorization", b"x-api-key")


class LoopLag:
    """How late the event loop is, in `seconds`; halved in every third of a second after that."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self._is_ticking = False

    def measure(self, is_needed: Callable[[], bool]) -> None:
        """From now on, for as long as `is_needed`."""
        if not self._is_ticking:
            self._is_ticking = True
            self._tick_later(is_needed)

    def _tick_later(self, is_needed: Callable[[], bool]) -> None:
        loop = asyncio.get_running_loop()
        loop.call_later(TICK_S, self._tick, loop.time() + TICK_S, is_needed)

    def _tick(self, due_at: float, is_needed: Callable[[], bool]) -> None:
        late_s = asyncio.get_running_loop().time() - due_at
        self.seconds = max(late_s, self.seconds * KEPT_A_TICK)
        self._is_ticking = is_needed()
        if self._is_ticking:
            self._tick_later(is_needed)
        else:
            self.seconds = 0.0


class FrontDoor:
    """`max_lag_s`: how late the event loop may be. `on_refused` is told of whom it turns away."""

    def __init__(
        self,
        app: ASGIApp,
        max_lag_s: float,
        lag: LoopLag | None = None,
        on_refused: Callable[[Scope, UnavailableError], None] = lambda scope, error: None,
    ) -> None:
        self.app = app
        self._on_refused = on_refused
        self._max_lag_s = max_lag_s
        self._lag = lag or LoopLag()
        self._open: Counter[bytes] = Counter()
        self._num_open = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["method"] != "POST":
            await self.app(scope, receive, send)
            return
        caller = shown_key(scope)
        if self._lag.seconds > self._max_lag_s and self._has_its_part(caller):
            log.info("request_turned_away", lag_ms=int(1000 * self._lag.seconds))
            error = UnavailableError(
                "The service is overloaded. Please try again later.",
                code="overloaded",
                retry_after_s=RETRY_AFTER_S,
            )
            self._on_refused(scope, error)
            await error_response(error)(scope, receive, send)
            return
        self._enter(caller)
        try:
            await self.app(scope, receive, send)
        finally:
            self._leave(caller)

    def _has_its_part(self, caller: bytes) -> bool:
        return self._num_open > 0 and self._open[caller] * len(self._open) >= self._num_open

    def _enter(self, caller: bytes) -> None:
        self._open[caller] += 1
        self._num_open += 1
        self._lag.measure(is_needed=lambda: self._num_open > 0)

    def _leave(self, caller: bytes) -> None:
        self._num_open -= 1
        self._open[caller] -= 1
        if self._open[caller] == 0:
            del self._open[caller]


def shown_key(scope: Scope) -> bytes:
    """What the caller of an HTTP request shows as its key; it may be none."""
    return b" ".join(value for name, value in scope["headers"] if name in _KEY_HEADERS)
