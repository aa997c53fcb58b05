"""An engine's own word on its adapters: how each stands, and what came of operators' commands.

Blocking, for the heartbeat's thread; `is_awaited` for the control thread. Knows nothing of pools.
Invariants: reports go out by difference, and whole again where Redis has lost them; a command that
nobody waits for any more is not passed on, so that one that lay about can do no harm.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import redis

from engine.messages import AdapterAck, AdapterReport
from engine.transport import keys
from engine.transport.codec import Codec
from engine.transport.connection import translated_errors

REPORT_TTL_S = 60.0
ANSWER_TTL_S = 120.0

Reports = Mapping[tuple[str, str], AdapterReport]
"""By (tenant_id, digest)."""


class LeverReports:
    """One per engine. All methods raise QueueUnavailableError; each may be called again."""

    def __init__(self, server: redis.Redis, codec: Codec, engine_id: str) -> None:
        self._redis = server
        self._codec = codec
        self._engine_id = engine_id
        self._known: Reports = {}

    def report(self, reports: Reports) -> None:
        """Say how every adapter stands; the same object as before says that nothing changed."""
        name = keys.residency(self._engine_id)
        known = self._known
        changed: dict[Any, bytes] = {
            _field(key): self._codec.encode(report)
            for key, report in reports.items()
            if reports is not known and known.get(key) != report
        }
        gone = [] if reports is known else [_field(key) for key in known if key not in reports]
        with translated_errors(), self._redis.pipeline(transaction=True) as pipe:
            if changed:
                pipe.hset(name, mapping=changed)
            if gone:
                pipe.hdel(name, *gone)
            pipe.pexpire(name, int(REPORT_TTL_S * 1000))
            is_there = pipe.execute()[-1]
        self._known = reports if is_there or not reports else {}

    def answer(self, acks: Sequence[AdapterAck]) -> None:
        """Say what came of commands."""
        with translated_errors(), self._redis.pipeline(transaction=True) as pipe:
            for ack in acks:
                name = keys.command(ack.command_id)
                pipe.hset(name, self._engine_id, self._codec.encode(ack))
                pipe.pexpire(name, int(ANSWER_TTL_S * 1000))
            pipe.execute()

    def is_awaited(self, command_id: str) -> bool:
        """Whether somebody may still wait for the answer."""
        with translated_errors():
            return bool(self._redis.exists(keys.command(command_id)))


def _field(key: tuple[str, str]) -> str:
    return "/".join(key)
