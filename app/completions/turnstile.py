"""Says again what a key was told a moment ago: that too much waits, of all or of its own.

The way to a refusal leads through the body, the registry and the queue. At many times the demand
that can be served a process would do little else, and serve less than it could. So what the door
(`app.completions.door`) or admission (`app.completions.admitting`) has said counts for the same key
for `REMEMBERED_S`, before the body is read or anybody is asked. After that one request asks again,
and the others need not: what it hears they hear. The door can be asked from here; who would be let
in there goes on, and so may each of the others that asks, until one is refused or none has been for
`SETTLED_S`. For what admission said one goes the whole way, and if it is let in, all do.

Knows nothing of queues. Invariants: nobody is refused here who was not refused there so lately that
the queue is still as full, or whose like is being asked, for `ASKING_S` at most; nobody is let in
by what is said here; a key that asked for the tier `flex` within `PATIENT_S`, which may wait longer
than others, is not refused here; what a key was told is forgotten within seconds of its last
request; every refusal is counted once, here or where its answer is watched.
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, cast

from fastapi import Request, Response
from fastapi.routing import APIRoute
from starlette.types import Receive, Scope, Send

from app.completions.entering import Ahead, Entering
from app.error_handlers import error_response
from app.errors import ApiError
from app.front_door import shown_key
from app.metrics.answers import REJECTIONS, AnswerMetrics

REMEMBERED_S = 0.25
QUEUE_SHARE = 8  # seven eighths of a full queue are left after that time
ASKING_S = 0.1
SETTLED_S = 1.0
KNOWN_S = 5.0
RENEWED_S = 1.0
"""Before a key would be unknown again one of its requests goes the whole way, or all soon would."""
PATIENT_S = 3600.0
MAX_KEYS = 10_000
INFERENCE_SUFFIX = "/completions"
"""Of the paths of all routes that have a turnstile."""


AskAgain = Callable[[Ahead], Awaitable[ApiError | None]]
"""What whoever refused a key would tell it now; None where it would be let in."""


@dataclass(slots=True)
class _Known:
    """A key that was verified. `refusal` is what it was told, and counts until `refused_until`.

    From then on it is asked again, until `settled_at`. `is_open`: who asked last was let in.
    """

    known_until: float
    refusal: ApiError | None = None
    refused_until: float = 0.0
    patient_until: float = 0.0
    ask_again: AskAgain | None = None
    settled_at: float = 0.0
    is_open: bool = False


@dataclass(frozen=True, slots=True)
class _Holder:
    """Whose a key is that was shown, and until when that counts."""

    key_id: str
    tenant_id: str
    known_until: float


class Turnstile:
    """One per API process."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._keys: dict[str, _Known] = {}
        self._holders: dict[int, _Holder] = {}
        """Of verified keys, by the hash of how they are shown."""
        self.entering = Entering()

    @asynccontextmanager
    async def passing(self, shown: bytes) -> AsyncIterator[ApiError | None]:
        """What whoever shows this key is told, if it was told so just now or would be.

        While the block lasts a place is kept for who is let in by the door: those who ask after it
        would else be let in as well, and be refused once they have come all the way.
        """
        holder = self._holder(shown)
        known = None if holder is None else self._keys.get(holder.key_id)
        if holder is None or known is None or not self._is_refused(known):
            yield None
        elif self._is_told(known):
            yield known.refusal
        elif (ask_again := self._asked_again(holder, known)) is None:
            yield None
        else:
            with self.entering.keep(holder.tenant_id) as ahead:
                yield await self._answer(holder, ask_again, ahead)

    def _is_refused(self, known: _Known) -> bool:
        """It was when it was asked last, and that is not long ago."""
        return known.refusal is not None and known.known_until > self._clock()

    def _is_told(self, known: _Known) -> bool:
        now = self._clock()
        return known.patient_until <= now < known.refused_until

    def _asked_again(self, holder: _Holder, known: _Known) -> AskAgain | None:
        """Of a request that was told nothing; None where it goes on to hear."""
        now = self._clock()
        if known.patient_until > now:
            return None
        if known.is_open and known.settled_at <= now:
            known.refusal = None
            return None
        if not known.is_open:
            known.refused_until = now + ASKING_S  # for all but this one
        return None if holder.known_until <= now + RENEWED_S else known.ask_again

    async def _answer(self, holder: _Holder, ask_again: AskAgain, ahead: Ahead) -> ApiError | None:
        try:
            refusal = await ask_again(ahead)
        except ApiError:
            return None  # whoever comes as far hears why
        if refusal is None:
            self.let_in(holder.key_id)
        return refusal

    def tenant_of(self, shown: bytes) -> str | None:
        """The id of the tenant whose key this is, if it was verified just now."""
        holder = self._holder(shown)
        return None if holder is None else holder.tenant_id

    def learn(self, shown: bytes, key_id: str, tenant_id: str) -> None:
        """This key was verified."""
        if len(self._holders) >= MAX_KEYS:
            self._holders.clear()
        self._holders[hash(shown)] = _Holder(key_id, tenant_id, self._clock() + KNOWN_S)

    def remember(
        self,
        key_id: str,
        refusal: ApiError,
        max_queue_wait_s: float,
        ask_again: AskAgain | None = None,
    ) -> None:
        """The key was refused, though it would have waited as long as anybody but flex may.

        ask_again: without it a request has to go the whole way to hear whether that still holds.
        """
        known, now = self._known(key_id), self._clock()
        known.refusal = refusal.again()
        known.refused_until = now + min(REMEMBERED_S, max_queue_wait_s / QUEUE_SHARE)
        known.settled_at = known.refused_until + min(SETTLED_S, max_queue_wait_s / QUEUE_SHARE)
        known.ask_again, known.is_open = ask_again, False

    def let_in(self, key_id: str) -> None:
        """The key was not refused."""
        known = self._keys.get(key_id)
        if known is None:
            return
        if known.ask_again is None:
            known.refusal = None
        elif not known.is_open:
            known.is_open, known.refused_until = True, self._clock()

    def note_flex(self, key_id: str) -> None:
        """The key asks for flex: what others are told is not meant for it."""
        known = self._known(key_id)
        known.patient_until = known.known_until = self._clock() + PATIENT_S

    def _holder(self, shown: bytes) -> _Holder | None:
        holder = self._holders.get(hash(shown))
        return None if holder is None or holder.known_until <= self._clock() else holder

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
    """A route whose callers pass the turnstile of their process before anything else.

    They pass it until their answers have ended: the work of a streamed one begins when it is sent.
    Its endpoint sets `request.state.is_watched` when its answer counts itself from then on.
    """

    async def handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["method"] not in (self.methods or ()):  # it says so itself
            await super().handle(scope, receive, send)
            return
        turnstile, answers = _of(scope)
        shown = shown_key(scope)
        async with turnstile.passing(shown) as refusal:
            if refusal is None:
                await super().handle(scope, receive, send)
                return
        answers.turned_away(turnstile.tenant_of(shown), refusal.code)
        await error_response(refusal)(scope, receive, send)

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handle = super().get_route_handler()

        async def learn(request: Request) -> Response:
            turnstile, answers = _of(request.scope)
            state = request.state
            try:
                return await handle(request)
            except ApiError as error:
                if error.status in REJECTIONS and not getattr(state, "is_watched", False):
                    answers.turned_away(getattr(state, "actor_tenant_id", None), error.code)
                raise
            finally:
                key_id = getattr(state, "actor", None)
                if key_id is not None:
                    turnstile.learn(shown_key(request.scope), key_id, state.actor_tenant_id)

        return learn


def _of(scope: Scope) -> tuple[Turnstile, AnswerMetrics]:
    context = scope["app"].state.ctx
    return cast(Turnstile, context.turnstile), cast(AnswerMetrics, context.answers)


def count_turned_away(
    turnstile: Turnstile, answers: AnswerMetrics, scope: Scope, error: ApiError
) -> None:
    """Count what came as far as no route (`app.front_door`), if it asked for an answer."""
    if scope["path"].endswith(INFERENCE_SUFFIX):
        answers.turned_away(turnstile.tenant_of(shown_key(scope)), error.code)
