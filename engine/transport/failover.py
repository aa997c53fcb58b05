"""Puts a request back into the queue, with the tokens its client has, for another engine to go on.

Only the API process that owns the request does so: it alone has the prompt and knows what was
delivered. Knows nothing of how it was found out that no engine has it. Invariants: while the tokens
are written down, no more are taken; from then on nothing is taken that another lease has produced;
a call whose reply was lost is repeated with the same words.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import msgspec
import structlog

from engine.messages import Abort, EngineRequest, ServiceTier, Wake
from engine.transport import keys
from engine.transport.codec import Codec
from engine.transport.output_stream import Adrift, OutputStream

log = structlog.get_logger(__name__)

Args = tuple[str | bytes | int | float, ...]

MAX_TORN = 5  # in a row, without a token between: no engine will do better


class Failover:
    """`run` calls a script of the queue by name; `abort` takes back what nobody waits for."""

    def __init__(
        self,
        run: Callable[..., Awaitable[Any]],
        codec: Codec,
        abort: Callable[[OutputStream], None],
        *,
        timeout_s: float,
        keeps_tier: bool,
        clock: Callable[[], float],
    ) -> None:
        """timeout_s: how long a request waits for another engine. keeps_tier: as `requeue_args`."""
        self._run = run
        self._codec = codec
        self._abort = abort
        self._timeout_s = timeout_s
        self._keeps_tier = keeps_tier
        self._clock = clock

    async def requeue(self, stream: OutputStream, why: Adrift) -> None:
        """Raises QueueUnavailableError: the stream stays adrift then, to be tried again."""
        if stream.is_finished:
            return
        if stream.num_torn > MAX_TORN:
            stream.fail("output_lost", "Part of the output was lost.", must_abort=True)
            return
        stream.adrift = why
        stream.hold()
        request = request_to_go_on(stream, why)
        is_forced = why is not Adrift.DIED
        args = requeue_args(
            request,
            self._codec,
            is_forced=is_forced,
            timeout_s=self._timeout_s,
            keeps_tier=self._keeps_tier,
        )
        was = await self._run("requeue", *args)
        now = self._clock()
        if was in (b"alive", b"gone"):  # a late heartbeat; or an end that has not been read yet
            stream.resume(now)
            return
        stream.move(request, now, now + self._timeout_s)
        log.info(
            "request_requeued",
            request_id=stream.request_id,
            why=why.value,
            epoch=request.epoch,
            num_tokens=stream.num_tokens,
        )
        if stream.is_finished:  # while this was on its way: the abort may have overtaken it
            self._abort(stream)


def request_to_go_on(stream: OutputStream, why: Adrift) -> EngineRequest:
    """The same request, seed and adapter and all, from the last token that came."""
    request = stream.request
    return msgspec.structs.replace(
        request,
        # No lease had this epoch, or a later one: each time in the queue is leased at most once.
        epoch=max(stream.epoch, request.epoch + 1),
        delivered_token_ids=stream.token_ids,
        num_reasoning_tokens=stream.num_reasoning_tokens,
        num_deaths=request.num_deaths + (why is Adrift.DIED),
    )


def enqueue_args(
    request: EngineRequest,
    codec: Codec,
    *,
    timeout_s: float | None = None,
    tier: ServiceTier | None = None,
) -> Args:
    """The arguments of lua/enqueue.lua, and the first of lua/requeue.lua.

    timeout_s: how long it may wait there. tier: its place, where that is not its own tier's.
    """
    return (
        request.request_id,
        request.tenant_id,
        request.api_id,
        codec.encode(request),
        len(request.prompt_token_ids) + len(request.delivered_token_ids),
        request.sampling.max_tokens,
        keys.adapter_member(request.adapter),
        request.epoch,
        request.weight,
        (tier or request.service_tier).value,
        "" if timeout_s is None else int(timeout_s * 1000),
        request.reserved_share,
        codec.encode(Wake()),
    )


def requeue_args(
    request: EngineRequest,
    codec: Codec,
    *,
    is_forced: bool,
    timeout_s: float | None = None,
    keeps_tier: bool = False,
) -> Args:
    """The arguments of lua/requeue.lua. `request.epoch` is that of its lease until now.

    What has begun goes on before what has not, unless it `keeps_tier`: nobody reads along.
    """
    tier = request.service_tier
    if tier is ServiceTier.FLEX and not keeps_tier:
        tier = ServiceTier.DEFAULT
    return (
        *enqueue_args(request, codec, timeout_s=timeout_s, tier=tier),
        "1" if is_forced else "0",
        codec.encode(Abort(request_id=request.request_id, epoch=request.epoch)),
    )


def abort_args(request_id: str, codec: Codec, *, epoch: int, engine_id: str = "") -> Args:
    """The arguments of lua/abort.lua, to take a request back wherever it is.

    epoch: of its lease, if it has one. engine_id: where its output came from.
    """
    return request_id, "0", engine_id, codec.encode(Abort(request_id=request_id, epoch=epoch))
