"""What an engine works on for API processes that died.

Knows nothing of how work is aborted. Invariant: nobody is called dead against the rules of
`ApiWatch`.
"""

from __future__ import annotations

import secrets
import time
from typing import cast

import redis
import structlog

from engine.messages import Abort
from engine.transport import keys
from engine.transport.connection import translated_errors
from engine.transport.errors import QueueUnavailableError
from engine.transport.liveness import ApiWatch
from engine.transport.usage import UsageMeter

log = structlog.get_logger(__name__)

DEAD_AFTER_S = 0.5  # since its heartbeat expired: its work is aborted within 2 s in all
STEADY_S = 2.0


class Orphans:
    """`find` as often as an engine's heartbeat, from one thread."""

    def __init__(self, client: redis.Redis, meter: UsageMeter) -> None:
        self._redis = client
        self._meter = meter
        self._watch = ApiWatch(dead_after_s=DEAD_AFTER_S, steady_s=STEADY_S, clock=time.monotonic)

    def find(self) -> list[Abort]:
        """What would abort the work that nobody wants. Raises QueueUnavailableError."""
        by_api = self._meter.requests_by_api()
        api_ids = list(by_api)
        try:
            with translated_errors():
                # Where all API processes are dead there is nobody else to give the data a name.
                self._redis.set(keys.GENERATION, secrets.token_hex(8), nx=True)
                found = self._redis.mget(keys.GENERATION, *map(keys.api, api_ids))
        except QueueUnavailableError:
            self._watch.forget()
            raise
        generation, *beats = cast("list[bytes | None]", found)
        present = {api_id: beat is not None for api_id, beat in zip(api_ids, beats, strict=True)}
        dead = self._watch.look(generation, present)
        for api_id in dead:
            log.warning("api_process_lost", api_id=api_id, num_requests=len(by_api[api_id]))
        return [abort for api_id in dead for abort in by_api[api_id]]
