"""Reserves a place in flight per request, in Redis, so that every API process sees one count.

A place is a lease: it expires unless its process keeps refreshing it, so a killed process gives
its places back. Knows nothing of what a request is. Invariant: whether a place is free is decided
in one script and by the server's clock, so a tenant is never admitted above its limit.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, NoReturn, cast

import structlog

from app.errors import RateLimitedError, UnavailableError
from engine.transport import keys
from engine.transport.connection import open_async_redis, translated_errors
from engine.transport.errors import QueueUnavailableError
from engine.transport.scripts import read_script

log = structlog.get_logger(__name__)

LEASE_S = 10.0
MAX_CONNECTIONS = 16
REFRESH_CHUNK = 500
CONCURRENCY_RETRY_S = 1.0  # a place is free when any of the tenant's requests ends


class Admission:
    """`acquire` before a request, `release` after it, however it ended; `close` at the end."""

    def __init__(self, redis_url: str, *, lease_s: float = LEASE_S) -> None:
        self._lease_ms = int(lease_s * 1000)
        self._redis = open_async_redis(redis_url, max_connections=MAX_CONNECTIONS)
        self._scripts = {
            name: cast(
                "Callable[..., Awaitable[Any]]",
                self._redis.register_script(read_script(name, "app.admission")),
            )
            for name in ("acquire", "refresh")
        }
        self._held: set[tuple[str, str]] = set()
        self._refreshing: asyncio.Task[None] | None = None
        self._is_closing = False

    @property
    def num_held(self) -> int:
        """How many places this process holds."""
        return len(self._held)

    async def acquire(
        self, tenant_id: str, request_id: str, *, concurrency_limit: int, queue_depth_limit: int
    ) -> None:
        """Reserve a place until `release`. Idempotent by request id.

        Raises RateLimitedError (`concurrency`, or code `queue_full`) where a limit is reached,
        and UnavailableError where Redis does not answer.
        """
        self._keep_refreshing()
        try:
            verdict = await self._run(
                "acquire",
                tenant_id,
                request_id,
                concurrency_limit,
                queue_depth_limit,
                self._lease_ms,
            )
        except QueueUnavailableError as error:
            raise UnavailableError(internal=str(error)) from error
        if verdict[0] == b"concurrency":
            _refuse_concurrency(concurrency_limit)
        if verdict[0] == b"queue":
            _refuse_queue(queue_depth_limit, oldest_wait_s=int(verdict[2]) / 1000)
        self._held.add((tenant_id, request_id))

    async def release(self, tenant_id: str, request_id: str) -> None:
        """Give the place back; without Redis it expires by itself. Never raises for that."""
        self._held.discard((tenant_id, request_id))
        try:
            with translated_errors():
                await self._redis.zrem(keys.admission(tenant_id), request_id)
        except QueueUnavailableError as error:
            log.warning("place_left_to_expire", request_id=request_id, error=str(error))

    async def refresh(self) -> None:
        """Extend every place held here. Raises QueueUnavailableError."""
        held = list(self._held)
        for start in range(0, len(held), REFRESH_CHUNK):
            pairs = [pair for pair in held[start : start + REFRESH_CHUNK] if pair in self._held]
            await self._run("refresh", self._lease_ms, *(part for pair in pairs for part in pair))
            for tenant_id, request_id in pairs:
                if (tenant_id, request_id) not in self._held:  # released meanwhile, maybe before
                    await self.release(tenant_id, request_id)

    async def close(self) -> None:
        """Stop refreshing; what is still held expires."""
        self._is_closing = True  # a cancellation can be swallowed inside redis-py
        if self._refreshing is not None:
            self._refreshing.cancel()
            await asyncio.gather(self._refreshing, return_exceptions=True)
            self._refreshing = None
        await self._redis.aclose()

    def _keep_refreshing(self) -> None:
        if self._refreshing is None or self._refreshing.done():
            self._refreshing = asyncio.create_task(self._refresh_often(), name="admission-refresh")

    async def _refresh_often(self) -> None:
        while not self._is_closing:
            await asyncio.sleep(self._lease_ms / 3000)
            try:
                await self.refresh()
            except QueueUnavailableError as error:
                log.warning("places_not_refreshed", num_held=self.num_held, error=str(error))

    async def _run(self, script: str, *args: Any) -> Any:
        with translated_errors():
            return await self._scripts[script](args=args)


def _refuse_concurrency(limit: int) -> NoReturn:
    raise RateLimitedError(
        f"You have {limit} requests in flight, which is your limit. Retry when one has ended.",
        type="concurrency",
        retry_after_s=CONCURRENCY_RETRY_S,
    )


def _refuse_queue(limit: int, *, oldest_wait_s: float) -> NoReturn:
    # A full queue turns over in about the time that its oldest request has waited.
    raise RateLimitedError(
        f"You have {limit} requests waiting, which is your limit. Retry when the queue is shorter.",
        code="queue_full",
        type="requests",
        retry_after_s=oldest_wait_s,
    )
