"""Tells every API process at once that some key or tenant is not what it was.

The registry is asked for each request anyway; what is forgotten here is what a process still goes
by while it cannot reach the registry (`app.registry_snapshot`). Knows nothing of keys. Invariants:
an announcement is made after the commit that it is about; a process that may have missed one
forgets as if it had heard it; without Redis what is held ends by its own age.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import structlog

from engine.transport import keys
from engine.transport.connection import open_async_redis, translated_errors
from engine.transport.errors import QueueUnavailableError

log = structlog.get_logger(__name__)

LISTEN_S = 1.0
RETRY_S = 0.5
SUBSCRIBE_TIMEOUT_S = 1.0


class Revocations:
    """`start`, any number of `announce`, `close`. `on_revoked` is called on the event loop."""

    def __init__(self, redis_url: str, on_revoked: Callable[[], None]) -> None:
        self._redis = open_async_redis(redis_url, max_connections=2)
        self._on_revoked = on_revoked
        self._is_listening = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._is_closing = False

    @property
    def is_listening(self) -> bool:
        return self._is_listening.is_set()

    async def start(self) -> None:
        """Begin to listen; does not fail where Redis is down."""
        self._task = asyncio.create_task(self._run(), name="revocations")
        try:
            async with asyncio.timeout(SUBSCRIBE_TIMEOUT_S):
                await self._is_listening.wait()
        except TimeoutError:
            log.warning("revocations_unheard")

    async def announce(self) -> None:
        """Something was revoked, and that is committed. Never raises for want of Redis."""
        self._on_revoked()
        try:
            with translated_errors():
                await self._redis.publish(keys.REVOCATIONS, b"")
        except QueueUnavailableError as error:
            log.warning("revocation_unannounced", error=str(error))

    async def close(self) -> None:
        self._is_closing = True  # a cancellation can be swallowed inside redis-py
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        await self._redis.aclose()

    async def _run(self) -> None:
        while not self._is_closing:
            try:
                with translated_errors():
                    await self._listen()
            except QueueUnavailableError as error:
                log.warning("revocations_unheard", error=str(error))
            finally:
                self._is_listening.clear()
            await asyncio.sleep(RETRY_S)

    async def _listen(self) -> None:
        async with self._redis.pubsub() as subscription:
            await subscription.subscribe(keys.REVOCATIONS)
            is_asked = False
            while not self._is_closing:
                message = await subscription.get_message(timeout=LISTEN_S)
                if message is not None and message["type"] in ("subscribe", "message"):
                    self._on_revoked()
                    self._is_listening.set()
                elif message is None and is_asked:
                    raise QueueUnavailableError("silent")
                elif message is None:
                    # A connection on which nothing is heard must still answer.
                    await subscription.ping()
                is_asked = message is None
