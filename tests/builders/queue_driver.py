"""Runs the queue's own scripts without an event loop, for tests that drive both of its ends.

Knows nothing of streams. Invariant: it calls the same Lua, with the same arguments, as the client.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import redis

from engine.messages import EngineRequest
from engine.transport.codec import Codec
from engine.transport.failover import abort_args, enqueue_args, requeue_args
from engine.transport.scripts import read_script
from tests.builders.queue_secret import QUEUE_SECRET


class QueueDriver:
    def __init__(self, server: redis.Redis) -> None:
        self._codec = Codec(QUEUE_SECRET)
        self._scripts = {
            name: cast("Callable[..., Any]", server.register_script(read_script(name)))
            for name in ("enqueue", "requeue", "abort", "inspect", "reap")
        }

    def enqueue(self, request: EngineRequest, *, timeout_s: float | None = None) -> str:
        args = enqueue_args(request, self._codec, timeout_s=timeout_s)
        return self._text(self._scripts["enqueue"](args=args))

    def requeue(
        self, request: EngineRequest, *, is_forced: bool = False, keeps_tier: bool = False
    ) -> str:
        args = requeue_args(request, self._codec, is_forced=is_forced, keeps_tier=keeps_tier)
        return self._text(self._scripts["requeue"](args=args))

    def abort(self, request_id: str, *, only_queued: bool = False, epoch: int = 1) -> str:
        args = abort_args(request_id, self._codec, epoch=epoch)
        if only_queued:
            args = (request_id, "1", "", "")
        return self._text(self._scripts["abort"](args=args))

    def reap(self, engine_id: str) -> int:
        return int(self._scripts["reap"](args=(engine_id, "")))

    def states(self, *request_ids: str) -> str:
        """One letter each: q queued, x expired, l leased, d leased to a dead engine, u unknown."""
        return self._text(self._scripts["inspect"](args=("generation-0", *request_ids))[3])

    @staticmethod
    def _text(reply: str | bytes) -> str:
        return reply if isinstance(reply, str) else reply.decode()
