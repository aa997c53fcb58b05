"""Connections to the primary that Redis Sentinel names, by a URL of its own kind.

    redis+sentinel://user:password@host:26379,host:26379/service/db?sentinel_password=...
    rediss+sentinel://...    TLS, to Sentinel as well; options as in `rediss://` URLs

User and password are those of the primary, `sentinel_username` and `sentinel_password` Sentinel's
own. Knows nothing of the queue. Invariant: each new connection asks who the primary is, and one
whose server was demoted ends at the first refusal to write, so that none stays with the old one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import parse_qsl, urlencode, urlsplit

import redis
import redis.asyncio
import redis.asyncio.sentinel
import redis.connection
import redis.sentinel
from redis.asyncio.retry import Retry as AsyncRetry
from redis.backoff import NoBackoff
from redis.exceptions import RedisError
from redis.retry import Retry
from redis.sentinel import MasterNotFoundError

SCHEMES = {"redis+sentinel": "redis", "rediss+sentinel": "rediss"}
SENTINEL_PORT = 26379
SENTINEL_TIMEOUT_S = 0.5  # another one is asked after that
_SENTINEL_OPTIONS = ("sentinel_username", "sentinel_password")

# redis-py's own, which mypy knows no types of.
_Sentinel: Any = redis.sentinel.Sentinel
_AsyncSentinel: Any = redis.asyncio.sentinel.Sentinel
_Pool: Any = redis.BlockingConnectionPool
_parse_url: Any = redis.connection.parse_url
_CONNECTIONS: Mapping[bool, Any] = {
    False: redis.sentinel.SentinelManagedConnection,
    True: redis.sentinel.SentinelManagedSSLConnection,
}
_ASYNC_CONNECTIONS: Mapping[bool, Any] = {
    False: redis.asyncio.sentinel.SentinelManagedConnection,
    True: redis.asyncio.sentinel.SentinelManagedSSLConnection,
}


def names_sentinels(url: str) -> bool:
    return urlsplit(url).scheme in SCHEMES


def open_primary_pool(url: str, **options: Any) -> redis.BlockingConnectionPool:
    """As `BlockingConnectionPool.from_url`. Raises ValueError for a URL that is none."""
    address = SentinelUrl.parse(url)
    pool: redis.BlockingConnectionPool = _Pool(
        connection_class=_CONNECTIONS[address.is_tls],
        connection_pool=_Primary(address),
        **{**options, **address.options},
    )
    return pool


def open_async_primary_pool(url: str, **options: Any) -> redis.asyncio.BlockingConnectionPool:
    address = SentinelUrl.parse(url)
    return redis.asyncio.BlockingConnectionPool(
        connection_class=_ASYNC_CONNECTIONS[address.is_tls],
        connection_pool=_AsyncPrimary(address),
        **{**options, **address.options},
    )


@dataclass(frozen=True, slots=True)
class SentinelUrl:
    """`options` are of connections to the primary, `sentinel_options` of those to Sentinel."""

    addresses: tuple[tuple[str, int], ...]
    service: str
    is_tls: bool
    options: Mapping[str, Any]
    sentinel_options: Mapping[str, Any]

    @classmethod
    def parse(cls, url: str) -> SentinelUrl:
        """Raises ValueError."""
        parts = urlsplit(url)
        user, _, hosts = parts.netloc.rpartition("@")
        service, _, database = parts.path.strip("/").partition("/")
        if not (hosts and service):
            raise ValueError("expected redis+sentinel://[user:password@]host,host/service[/db]")
        query = dict(parse_qsl(parts.query))
        own = {name: query.pop(name) for name in _SENTINEL_OPTIONS if name in query}
        scheme = SCHEMES[parts.scheme]
        single = f"{scheme}://{user}@localhost/{database or 0}?{urlencode(query)}"
        options: dict[str, Any] = dict(_parse_url(single))
        for name in ("host", "connection_class"):
            options.pop(name, None)
        sentinel_options: dict[str, Any] = {
            name.removeprefix("sentinel_"): value for name, value in own.items()
        }
        if scheme == "rediss":
            tls = {name: value for name, value in options.items() if name.startswith("ssl_")}
            sentinel_options |= {"ssl": True, **tls}
        return cls(
            addresses=tuple(map(_address, hosts.split(","))),
            service=service,
            is_tls=scheme == "rediss",
            options=options,
            sentinel_options=sentinel_options,
        )


class _Primary:
    """What redis-py's managed connections ask of their pool. Keeps no connection to Sentinel."""

    is_master = True
    check_connection = False

    def __init__(self, url: SentinelUrl) -> None:
        self._url = url
        self._addresses = list(url.addresses)

    def get_master_address(self) -> tuple[str, int]:
        """Raises RedisError where no Sentinel knows one."""
        retry = Retry(NoBackoff(), 0)
        sentinel = _Sentinel(self._addresses, sentinel_kwargs=_habits(self._url, retry))
        try:
            return _found(sentinel.discover_master(self._url.service))
        except MasterNotFoundError:
            first = sentinel.sentinels[0]
            try:
                first.ping()
            except RedisError as error:
                raise _unknown(self._url, error) from None
            raise _unknown(self._url) from None
        finally:
            self._addresses = _in_order(sentinel)
            for each in sentinel.sentinels:
                each.close()


class _AsyncPrimary:
    is_master = True
    check_connection = False

    def __init__(self, url: SentinelUrl) -> None:
        self._url = url
        self._addresses = list(url.addresses)

    async def get_master_address(self) -> tuple[str, int]:
        retry = AsyncRetry(NoBackoff(), 0)
        sentinel = _AsyncSentinel(self._addresses, sentinel_kwargs=_habits(self._url, retry))
        try:
            return _found(await sentinel.discover_master(self._url.service))
        except redis.asyncio.sentinel.MasterNotFoundError:
            first = sentinel.sentinels[0]
            try:
                await first.ping()
            except RedisError as error:
                raise _unknown(self._url, error) from None
            raise _unknown(self._url) from None
        finally:
            self._addresses = _in_order(sentinel)
            for each in sentinel.sentinels:
                await each.aclose()


def _habits(url: SentinelUrl, retry: object) -> dict[str, Any]:
    return {
        "protocol": 2,
        "retry": retry,
        "socket_timeout": SENTINEL_TIMEOUT_S,
        "socket_connect_timeout": SENTINEL_TIMEOUT_S,
        **url.sentinel_options,
    }


def _unknown(url: SentinelUrl, refusal: RedisError | None = None) -> MasterNotFoundError:
    """In place of redis-py's own, which says how each was asked, and not what was the matter."""
    why = "they name none" if refusal is None else f"{type(refusal).__name__}: {refusal}"
    return MasterNotFoundError(f"no primary of {url.service!r} from Sentinel: {why}")


def _found(address: Any) -> tuple[str, int]:
    host, port = address
    return host, port


def _in_order(sentinel: Any) -> list[tuple[str, int]]:
    """Whoever answered comes first: the next connection need not wait for one that is gone."""
    options = [each.connection_pool.connection_kwargs for each in sentinel.sentinels]
    return [(each["host"], each["port"]) for each in options]


def _address(host: str) -> tuple[str, int]:
    parts = urlsplit(f"//{host}")
    if not parts.hostname:
        raise ValueError(f"no host in {host!r}")
    return parts.hostname, parts.port or SENTINEL_PORT
