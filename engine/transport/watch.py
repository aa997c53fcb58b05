"""Looks after streams that are silent: are their engines alive, does the queue still know them?

Knows nothing of how outputs arrive. Invariant: a stream that can get no more output is failed,
with a code that says why, within a second or two of its cause:

    engine_lost        the engine that leased it is gone (failover goes here)
    queue_timeout      no engine took it before its deadline
    queue_lost         Redis lost its data, or the last output was lost
    queue_unavailable  Redis has been away for too long
"""

from __future__ import annotations

import secrets
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import structlog

from engine.transport.errors import QueueUnavailableError
from engine.transport.output_stream import OutputStream

log = structlog.get_logger(__name__)

SILENT_AFTER_S = 0.5
OUTAGE_LIMIT_S = 30.0
REAP_AFTER_S = 30.0  # every API process has noticed by then
MAX_INSPECTED = 500  # requests per call


class Watch:
    """`look()` every quarter of a second. `run` calls a script of the queue by name."""

    def __init__(
        self,
        run: Callable[..., Awaitable[Any]],
        streams: Mapping[str, OutputStream],
        *,
        on_data_lost: Callable[[], None],
        clock: Callable[[], float],
    ) -> None:
        self.is_connected = False
        self.caught_up_at = clock()  # when the last read began that left nothing unread
        self.live_engines: frozenset[str] = frozenset()
        self._run = run
        self._streams = streams
        self._on_data_lost = on_data_lost
        self._clock = clock
        self._generation: bytes | None = None
        self._answered_at = clock()
        self._dead_since: dict[str, float] = {}

    async def look(self) -> None:
        """Inspect what is silent. Raises QueueUnavailableError, after giving up what must be."""
        now = self._clock()
        silent = [
            stream
            for stream in self._streams.values()
            if stream.is_enqueued and now - stream.last_output_at >= SILENT_AFTER_S
        ]
        try:
            for start in range(0, max(1, len(silent)), MAX_INSPECTED):
                await self._inspect(silent[start : start + MAX_INSPECTED], now)
            await self._reap(now)
        except QueueUnavailableError:
            self._endure_outage(self._clock())
            raise
        self.is_connected = True
        self._answered_at = self._clock()

    async def look_at_engines(self) -> None:
        """Bring `live_engines` up to date. Raises QueueUnavailableError."""
        await self._inspect([], self._clock())

    async def _inspect(self, streams: list[OutputStream], now: float) -> None:
        candidate = secrets.token_hex(8)
        ids = [stream.request_id for stream in streams]
        generation, live, dead, states = await self._run("inspect", candidate, *ids)
        self._note_generation(generation)
        self._note_engines(live, dead, now)
        for stream, state in zip(streams, states.decode(), strict=True):
            await self._judge(stream, state, now)

    async def _judge(self, stream: OutputStream, state: str, now: float) -> None:
        if state == "u":
            self._judge_unknown(stream)
            return
        stream.unknown_since = None
        if state == "d":
            stream.fail("engine_lost", "The engine that ran the request failed.", must_abort=True)
        elif state == "q" and self._is_overdue(stream, now):
            # It may have been leased since: only what was still queued is over.
            was = await self._run("abort", stream.request_id, "1", "", "")
            if was == b"queued":
                stream.fail("queue_timeout", "No engine was free in time.", must_abort=False)

    def _judge_unknown(self, stream: OutputStream) -> None:
        """A finished request is unknown too, so what was said before now must be read first."""
        if stream.unknown_since is None:
            stream.unknown_since = self._clock()
        elif self.caught_up_at > stream.unknown_since:
            stream.fail("queue_lost", "The queue lost the request.", must_abort=True)

    def _note_generation(self, generation: bytes) -> None:
        if self._generation not in (None, generation):
            log.error("queue_lost_its_data", num_in_flight=len(self._streams))
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
        for stream in list(self._streams.values()):
            stream.unknown_since = None
            if now - self._answered_at >= OUTAGE_LIMIT_S:
                stream.fail("queue_unavailable", "The queue does not answer.", must_abort=True)
            elif self._is_overdue(stream, now):
                stream.fail("queue_timeout", "No engine was free in time.", must_abort=True)

    @staticmethod
    def _is_overdue(stream: OutputStream, now: float) -> bool:
        return (
            stream.deadline_at is not None and now >= stream.deadline_at and not stream.has_started
        )
