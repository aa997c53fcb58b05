"""Opens connections to a Redis-protocol server, blocking and async, with one set of habits.

Knows nothing of the queue. Invariant: nothing is retried behind the caller's back (a lost reply
does not mean a lost command), a burst waits for a connection instead of failing, and whatever
Redis cannot do is a QueueUnavailableError.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import redis
import redis.asyncio
from redis.asyncio.retry import Retry as AsyncRetry
from redis.backoff import NoBackoff
from redis.exceptions import RedisError
from redis.retry import Retry

from engine.transport.errors import QueueUnavailableError
from engine.transport.sentinel import (
    names_sentinels,
    open_async_primary_pool,
    open_primary_pool,
)

SOCKET_TIMEOUT_S = 5.0  # longer than any blocking command asks for
CONNECT_TIMEOUT_S = 2.0
POOL_TIMEOUT_S = 2.0

_OPTIONS: dict[str, Any] = {
    "protocol": 2,
    "socket_timeout": SOCKET_TIMEOUT_S,
    "socket_connect_timeout": CONNECT_TIMEOUT_S,
    "socket_keepalive": True,
}


def open_redis(url: str, *, max_connections: int) -> redis.Redis:
    """A blocking client that several threads may share; a connection per call in flight."""
    is_watched = names_sentinels(url)
    open_pool = open_primary_pool if is_watched else redis.BlockingConnectionPool.from_url
    pool = open_pool(
        url,
        max_connections=max_connections,
        timeout=POOL_TIMEOUT_S,
        retry=Retry(NoBackoff(), 0),
        **_OPTIONS,
    )
    return redis.Redis.from_pool(pool)


def open_async_redis(url: str, *, max_connections: int) -> redis.asyncio.Redis:
    """An async client for one event loop."""
    is_watched = names_sentinels(url)
    open_pool = (
        open_async_primary_pool if is_watched else redis.asyncio.BlockingConnectionPool.from_url
    )
    pool = open_pool(
        url,
        max_connections=max_connections,
        timeout=POOL_TIMEOUT_S,
        retry=AsyncRetry(NoBackoff(), 0),
        **_OPTIONS,
    )
    kind = pool.connection_class
    pool.connection_class = type(kind.__name__, (_ClosedIsLost, kind), {})
    return redis.asyncio.Redis.from_pool(pool)


class _ClosedIsLost:
    """Of an async connection of any kind: to write to one that was closed is to have lost it.

    asyncio's own transports swallow such a write; uvloop's raise RuntimeError, which redis-py
    passes on as it is.
    """

    async def send_packed_command(self, *args: Any, **kwargs: Any) -> None:
        try:
            await super().send_packed_command(*args, **kwargs)  # type: ignore[misc]  # a mixin
        except RuntimeError as error:
            raise redis.ConnectionError(f"closed while writing: {error}") from error


@contextmanager
def translated_errors() -> Iterator[None]:
    """Redis's errors, and the socket's, become QueueUnavailableError; also around awaits."""
    try:
        yield
    except (RedisError, OSError) as error:
        raise QueueUnavailableError(f"{type(error).__name__}: {error}") from error
