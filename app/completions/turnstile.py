"""Says again what a key was told a moment ago: that too much waits.

The way to a refusal leads through the body, the registry and the queue. At many times the demand
that can be served a process would do little else, and serve less than it could. So what the door
(`app.completions.door`) has said counts for the same key for `REMEMBERED_S`, before the body is
read or anybody is asked. Knows nothing of queues. Invariants: nobody is refused here who was not
refused there so lately that the queue is still as full; a key that asked for the tier `flex` within
`PATIENT_S`, which may wait longer than others, is not refused here; what a key was told is
forgotten within seconds of its last request.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any, cast

from fastapi import Request, Response
from fastapi.routing import APIRoute

from app.error_handlers import error_response
from app.errors import UnavailableError

REMEMBERED_S = 0.25
QUEUE_SHARE = 8  # seven eighths of a full queue are left after that time
KNOWN_S = 5.0
PATIENT_S = 3600.0
MAX_KEYS = 10_000
_KEY_HEADERS = (b"authorization", b"x-api-key")


@dataclass(slots=True)
class _Known:
    """A key that was verified. `refusal` is what it was told, and counts until `refused_until`."""

    known_until: float
    refusal: UnavailableError | None = None
    refused_until: float = 0.0
    patient_until: float = 0.0


class Turnstile:
    """One per API process."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._keys: dict[str, _Known] = {}
        self._ids: dict[int, tuple[str, float]] = {}
        """Ids of verified keys by the hash of how they are shown, and until when."""

    def recall(self, shown: bytes) -> UnavailableError | None:
        """What whoever shows this key is told, if it was told the same just now."""
        now = self._clock()
        key_id, known_until = self._ids.get(hash(shown), ("", 0.0))
        if known_until <= now:
            return None
        known = self._keys.get(key_id)
        if known is None or known.refused_until <= now or known.patient_until > now:
            return None
        return known.refusal

    def learn(self, shown: bytes, key_id: str) -> None:
        """This key was verified."""
        now = self._clock()
        if len(self._ids) >= MAX_KEYS:
            self._ids.clear()
        self._ids[hash(shown)] = (key_id, now + KNOWN_S)

    def remember(self, key_id: str, refusal: UnavailableError, max_queue_wait_s: float) -> None:
        """The key was refused, though it would have waited as long as anybody but flex may."""
        known = self._known(key_id)
        known.refusal = refusal
        known.refused_until = self._clock() + min(REMEMBERED_S, max_queue_wait_s / QUEUE_SHARE)

    def note_flex(self, key_id: str) -> None:
        """The key asks for flex: what others are told is not meant for it."""
        known = self._known(key_id)
        known.patient_until = known.known_until = self._clock() + PATIENT_S

    def _known(self, key_id: str) -> _Known:
        now = self._clock()
        if len(self._keys) >= MAX_KEYS:
            self._keys = {name: each for name, each in self._keys.items() if each.known_until > now}
        if len(self._keys) >= MAX_KEYS:
            self._keys.clear()
        known = self._keys.setdefault(key_id, _Known(now))
        known.known_until = max(known.known_until, now + KNOWN_S)
        return known


class TurnstileRoute(APIRoute):
    """A route whose callers pass the turnstile of their process before anything else."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handle = super().get_route_handler()

        async def pass_through(request: Request) -> Response:
            turnstile = cast(Turnstile, request.app.state.ctx.turnstile)
            shown = _shown_key(request)
            refusal = turnstile.recall(shown)
            if refusal is not None:
                return error_response(refusal)
            try:
                return await handle(request)
            finally:
                key_id = getattr(request.state, "actor", None)
                if key_id is not None:
                    turnstile.learn(shown, key_id)

        return pass_through


def _shown_key(request: Request) -> bytes:
    headers = request.scope["headers"]
    return b" ".join(value for name, value in headers if name in _KEY_HEADERS)
