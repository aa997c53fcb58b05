"""Looks at Redis: reachable, new enough, keeps what it is given, and who works on the queue.

Knows nothing of single requests. Invariant: it changes nothing that anybody would miss.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterator, Mapping
from typing import Any, cast
from urllib.parse import urlsplit

from redis.asyncio import Redis
from redis.exceptions import ResponseError

from app.doctor.findings import Finding, fail, ok, skip, warn
from app.doctor.registry import LOCAL_HOSTS, MAX_SKEW_S
from app.metrics.worker import read_lag
from engine.transport import keys
from engine.transport.client import QueueClient
from engine.transport.codec import MIN_SECRET_CHARS
from engine.transport.connection import open_async_redis, translated_errors
from engine.transport.errors import QueueUnavailableError
from engine.transport.secret_list import secrets_of

OLDEST = (7, 0)
LEDGER_GROUP = "ledger"
MAX_LAG_S = 60.0
FULL_SHARE = 0.8

Info = Mapping[str, Any]


async def look_at_queue(
    url: str | None, secret: str | None, max_usage_backlog: int
) -> list[Finding]:
    if url is None:
        return [fail("redis", "TENFOLD_REDIS_URL is not set", "set it")]
    host = urlsplit(url).hostname
    try:
        redis = open_async_redis(url, max_connections=2)
    except ValueError:
        todo = "write it as rediss://:password@host:6379/0"
        return [fail("redis", "TENFOLD_REDIS_URL is not a URL", todo)]
    try:
        findings = await _look(redis, url, host, max_usage_backlog)
    except QueueUnavailableError as error:
        return [
            fail(
                "redis",
                f"it does not answer at {host} ({str(error).partition(':')[0]})",
                "check host, port, password and TLS in TENFOLD_REDIS_URL, and that the network "
                "lets this machine through",
            )
        ]
    finally:
        await redis.aclose()
    return [*findings, await _engines(url, secret)]


async def _look(redis: Redis, url: str, host: str | None, max_usage_backlog: int) -> list[Finding]:
    with translated_errors():
        info = cast("Info", await redis.info())
        began_at = time.time()
        seconds, micros = await redis.time()
    skew_s = seconds + micros / 1e6 - (began_at + time.time()) / 2
    if info.get("cluster_enabled"):
        return [
            fail(
                "redis",
                "it is a Redis Cluster",
                "use one primary with replicas or Sentinel: all keys share one hash slot, and "
                "scripts touch many of them at once",
            )
        ]
    lag = await read_lag(redis)
    return [
        *_server(info, host),
        *_keeping(info),
        *([] if urlsplit(url).scheme.startswith("rediss") or host in LOCAL_HOSTS else [_no_tls()]),
        _clock(skew_s),
        await _ledger(redis, lag.num, lag.oldest_s, max_usage_backlog),
    ]


def _server(info: Info, host: str | None) -> Iterator[Finding]:
    is_valkey = "valkey_version" in info
    text = str(info.get("valkey_version") or info.get("redis_version") or "0.0")
    what = f"{'Valkey' if is_valkey else 'Redis'} {text} at {host}"
    version = tuple(int(part) for part in re.findall(r"\d+", text)[:2])
    if version < OLDEST:
        yield fail("redis", what, "upgrade it: Redis 7.0 to 8, Valkey 8 or 9 are supported")
    elif info.get("role") != "master":
        yield fail("redis", f"{what} is a replica", "point TENFOLD_REDIS_URL at the primary")
    else:
        yield ok("redis", what)


def _keeping(info: Info) -> Iterator[Finding]:
    """That nothing is evicted, and that a restart loses at most a second."""
    policy = info.get("maxmemory_policy", "unknown")
    limit, used = int(info.get("maxmemory", 0)), int(info.get("used_memory", 0))
    if policy != "noeviction":
        yield fail(
            "redis-eviction",
            f"maxmemory-policy is {policy}",
            "CONFIG SET maxmemory-policy noeviction, and in its configuration: an evicted lease "
            "or record of usage is gone",
        )
    else:
        yield ok("redis-eviction", "noeviction")
    if limit and used > FULL_SHARE * limit:
        yield warn(
            "redis-memory",
            f"{used >> 20} of {limit >> 20} MiB are used",
            "raise maxmemory, or see what fills it: when it is full new work is answered 503",
        )
    if not info.get("aof_enabled"):
        yield warn(
            "redis-persistence",
            "the append-only file is off",
            "appendonly yes, appendfsync everysec: without it a restart makes every stream move, "
            "and loses records of usage that no worker has read",
        )
    else:
        yield ok("redis-persistence", "append-only file")


def _no_tls() -> Finding:
    return warn("redis-tls", "the connection is not encrypted", "use rediss:// with a certificate")


def _clock(skew_s: float) -> Finding:
    if abs(skew_s) > MAX_SKEW_S:
        return warn(
            "clock-redis",
            f"Redis' clock is {skew_s:+.1f} s from this machine's",
            "run NTP on both: waits and rates are counted by Redis' clock",
        )
    return ok("clock-redis", f"{skew_s * 1000:+.0f} ms from this machine's")


async def _ledger(
    redis: Redis, num_records: int, oldest_s: float, max_usage_backlog: int
) -> Finding:
    """Whether a worker takes in what is used."""
    try:
        with translated_errors():
            consumers = await redis.xinfo_consumers(keys.USAGE, LEDGER_GROUP)
    except QueueUnavailableError as error:
        if not isinstance(error.__cause__, ResponseError):
            raise
        consumers = []
    what = f"{num_records} records wait, the first for {oldest_s:.0f} s"
    if num_records and (not consumers or oldest_s > MAX_LAG_S):
        status = fail if num_records > max_usage_backlog else warn
        return status("ledger", what, "start a worker (`tenfold worker`), or look why it fails")
    return ok("ledger", what)


async def _engines(url: str, secret: str | None) -> Finding:
    if not secret:
        return skip("engines", "TENFOLD_QUEUE_SECRET is not set")
    if min(map(len, secrets_of(secret))) < MIN_SECRET_CHARS:
        todo = f"at least {MIN_SECRET_CHARS} characters, the same for API, worker and engine"
        return fail("engines", "TENFOLD_QUEUE_SECRET is too short", todo)
    client = QueueClient(url, "doctor", secret=secret)
    try:
        engines = await client.live_engines()
    except QueueUnavailableError as error:
        return fail(
            "engines",
            f"scripts do not run ({str(error).partition(':')[0]})",
            "let the user of TENFOLD_REDIS_URL run EVAL, EVALSHA and SCRIPT",
        )
    finally:
        await client.close()
    if not engines:
        return warn(
            "engines",
            "none has a heartbeat",
            "start one (`tenfold engine`), or see in its log how far it is",
        )
    return ok("engines", f"{len(engines)} alive: {', '.join(sorted(engines)[:5])}")
