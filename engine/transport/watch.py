"""Looks after streams that are silent: are their engines alive, does the queue still know them?

Knows nothing of how outputs arrive. Invariant: a stream that can get no more output goes on at
another engine, or is failed with a code that says why, within a second or two of its cause:

    engine_lost        the engine that had it is gone, and no other took over before its deadline
    queue_timeout      no engine took it before its deadline
    queue_unavailable  Redis has been away for too long

That an engine is silent counts only while Redis answers: after an outage, or when it lost its data,
engines get the time of a heartbeat to be heard again.
"""

from __future__ import annotations

import secrets
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import structlog

from engine.transport.errors import QueueUnavailableError
from engine.transport.failover import Failover
from engine.transport.output_stream import Adrift, OutputStream

log = structlog.get_logger(__name__)

SILENT_AFTER_S = 0.5
STEADY_S = 1.0  # an engine's heartbeat, and its time to live
SLOW_LOOK_S = 0.5
OUTAGE_LIMIT_S = 30.0
REAP_AFTER_S = 30.0  # every API process has noticed by then
MAX_INSPECTED = 500  # requests per call


class Watch:
    """`look()` every quarter of a second. `run` calls a script of the queue by name."""

    def __init__(
        self,
        run: Callable[..., Awaitable[Any]],
        streams: Mapping[str, OutputStream],
        failover: Failover,
        *,
        on_data_lost: Callable[[], None],
        clock: Callable[[], float],
    ) -> None:
        self.is_connected = False
        self.num_queued = 0
        self.caught_up_at = clock()  # when the last read began that left nothing unread
        self.live_engines: frozenset[str] = frozenset()
        self._run = run
        self._streams = streams
        self._failover = failover
        self._on_data_lost = on_data_lost
        self._clock = clock
        self._generation: bytes | None = None
        self._has_lost_data = False
        self._answered_at = clock()
        self._steady_since = clock()
        self._dead_since: dict[str, float] = {}

    async def look(self) -> None:
        """Inspect what is silent. Raises QueueUnavailableError, after giving up what must be."""
        now = self._clock()
        try:
            await self.rescue()
            await self._inspect(self._silent(now), now)
            if self._has_lost_data:
                await self._recover(now)
            await self._reap(now)
        except QueueUnavailableError:
            self._endure_outage(self._clock())
            raise
        self.is_connected = True
        self._answered_at = self._clock()
        if self._answered_at - now > SLOW_LOOK_S:
            self._steady_since = self._answered_at

    async def rescue(self) -> None:
        """Let others go on with what is known to be adrift. Raises QueueUnavailableError."""
        for stream in list(self._streams.values()):
            if stream.adrift is not None and stream.is_enqueued:
                await self._failover.requeue(stream, stream.adrift)

    async def look_at_engines(self) -> None:
        """Bring `live_engines` up to date. Raises QueueUnavailableError."""
        await self._inspect([], self._clock())

    def _silent(self, now: float) -> list[OutputStream]:
        since = now - SILENT_AFTER_S
        return [
            each
            for each in self._streams.values()
            if each.is_enqueued and (each.last_output_at <= since or _is_overdue(each, now))
        ]

    async def _inspect(self, streams: list[OutputStream], now: float) -> None:
        for start in range(0, max(1, len(streams)), MAX_INSPECTED):
            batch = streams[start : start + MAX_INSPECTED]
            for stream, state in zip(batch, await self._states(batch, now), strict=True):
                await self._judge(stream, state, now)

    async def _recover(self, now: float) -> None:
        """Redis lost its data: put back all that it does not know any more."""
        streams = [each for each in self._streams.values() if each.is_enqueued]
        for start in range(0, len(streams), MAX_INSPECTED):
            batch = streams[start : start + MAX_INSPECTED]
            for stream, state in zip(batch, await self._states(batch, now), strict=True):
                if state == "u":
                    await self._failover.requeue(stream, Adrift.LOST)
        self._has_lost_data = False

    async def _states(self, streams: list[OutputStream], now: float) -> str:
        """One letter each, as lua/inspect.lua says."""
        candidate = secrets.token_hex(8)
        ids = [stream.request_id for stream in streams]
        found = await self._run("inspect", candidate, *ids)
        generation, live, dead, states, self.num_queued = found
        self._note_generation(generation, now)
        self._note_engines(live, dead, now)
        return str(states.decode())

    async def _judge(self, stream: OutputStream, state: str, now: float) -> None:
        if state == "u":
            await self._judge_unknown(stream)
            return
        stream.unknown_since = None
        if state == "d" and now - self._steady_since >= STEADY_S:
            await self._failover.requeue(stream, Adrift.DIED)
        elif state == "h":
            await self._failover.requeue(stream, Adrift.HANDED_OVER)
        elif state == "x" or (state == "q" and _is_overdue(stream, now)):
            # It may have been leased since: only what was still queued is over.
            was = await self._run("abort", stream.request_id, "1", "", "")
            if was == b"queued":
                _give_up(stream, must_abort=False)

    async def _judge_unknown(self, stream: OutputStream) -> None:
        """A finished request is unknown too, so what was said before now must be read first."""
        if stream.unknown_since is None:
            stream.unknown_since = self._clock()
        elif self.caught_up_at > stream.unknown_since:
            await self._failover.requeue(stream, Adrift.LOST)

    def _note_generation(self, generation: bytes, now: float) -> None:
        if self._generation not in (None, generation):
            log.error("queue_lost_its_data", num_in_flight=len(self._streams))
            self._has_lost_data = True
            self._steady_since = now
            self._on_data_lost()
        self._generation = generation

    def _note_engines(self, live: list[bytes], dead: list[bytes], now: float) -> None:
        self.live_engines = frozenset(engine.decode() for engine in live)
        gone = {engine.decode() for engine in dead}
        self._dead_since = {engine: self._dead_since.get(engine, now) for engine in gone}

    async def _reap(self, now: float) -> None:
        for engine, since in self._dead_since.items():
            if now - since >= REAP_AFTER_S:
                num_leases = await self._run("reap", engine, "")
                log.warning("engine_reaped", engine_id=engine, num_leases=num_leases)

    def _endure_outage(self, now: float) -> None:
        self.is_connected = False
        self._steady_since = now
        for stream in list(self._streams.values()):
            stream.unknown_since = None
            if now - self._answered_at >= OUTAGE_LIMIT_S:
                stream.fail("queue_unavailable", "The queue does not answer.", must_abort=True)
            elif _is_overdue(stream, now):
                _give_up(stream, must_abort=True)


def _is_overdue(stream: OutputStream, now: float) -> bool:
    """Its deadline has passed, and no engine has said anything."""
    return stream.deadline_at is not None and now >= stream.deadline_at and stream.engine_id is None


def _give_up(stream: OutputStream, *, must_abort: bool) -> None:
    if stream.request.epoch > 0:
        stream.fail("engine_lost", "No other engine took over in time.", must_abort=must_abort)
    else:
        stream.fail("queue_timeout", "No engine was free in time.", must_abort=must_abort)
