"""Which API processes live: each says so itself, and others watch.

Knows nothing of requests. Invariant: a process is called dead only after it was absent for a while
from a Redis that answered all the time and kept its data: a server that was away, or came back
empty, is proof of nothing.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Mapping

import structlog

from engine.transport import keys
from engine.transport.connection import open_redis, translated_errors
from engine.transport.errors import QueueUnavailableError

log = structlog.get_logger(__name__)

API_BEAT_S = 0.25
API_TTL_S = 1.0


class ApiHeartbeat:
    """Says every quarter of a second, from a thread of its own, that this API process lives.

    And hears, each time, how much waits to be written into the ledger.
    """

    def __init__(self, redis_url: str, api_id: str) -> None:
        self._key = keys.api(api_id)
        self._redis = open_redis(redis_url, max_connections=1)
        self._must_stop = threading.Event()
        self.usage_backlog = 0
        self._thread = threading.Thread(target=self._run, name="api-heartbeat", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Blocks until the thread has ended; the key is gone then, or expires."""
        self._must_stop.set()
        if self._thread.is_alive():
            self._thread.join()
        self._redis.close()

    def _run(self) -> None:
        is_failing = False
        while True:
            try:
                with translated_errors():
                    self._redis.set(self._key, 1, px=int(API_TTL_S * 1000))
                    self.usage_backlog = self._redis.xlen(keys.USAGE)
                is_failing = False
            except QueueUnavailableError as error:
                if not is_failing:
                    log.warning("api_heartbeat_failed", error=str(error))
                is_failing = True
            if self._must_stop.wait(API_BEAT_S):
                break
        try:
            with translated_errors():
                self._redis.delete(self._key)
        except QueueUnavailableError as error:
            log.warning("api_heartbeat_left_to_expire", error=str(error))


class ApiWatch:
    """Judges looks at the heartbeats. Made for one watcher; nothing here waits.

    Dead is who was absent for `dead_after_s`, in looks at one and the same data of `steady_s` or
    more. Both in seconds of `clock`.
    """

    def __init__(self, *, dead_after_s: float, steady_s: float, clock: Callable[[], float]) -> None:
        self._dead_after_s = dead_after_s
        self._steady_s = steady_s
        self._clock = clock
        self._generation: bytes | None = None
        self._steady_since = clock()
        self._absent_since: dict[str, float] = {}

    def forget(self) -> None:
        """Redis did not answer: nothing that was seen before counts."""
        self._generation = None
        self._absent_since.clear()

    def look(self, generation: bytes | None, is_present: Mapping[str, bool]) -> Collection[str]:
        """The ids that are dead, of those that were looked up now."""
        now = self._clock()
        if generation is None or generation != self._generation:
            self._generation = generation
            self._steady_since = now
            self._absent_since.clear()
        self._absent_since = {
            api_id: self._absent_since.get(api_id, now)
            for api_id, present in is_present.items()
            if not present
        }
        if now - self._steady_since < self._steady_s:
            return []
        return [
            api_id
            for api_id, since in self._absent_since.items()
            if now - since >= self._dead_after_s
        ]
