"""What Prometheus reads from a worker: the ledger's lag, what waits, what did not balance.

Knows nothing of how work is done. Invariants: asking takes `TIMEOUT_S` at most, and what is not
known by then is NaN, never 0; labels are bounded as in the API.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterator, Mapping
from typing import Any, TypeVar, cast

from prometheus_client import Gauge
from prometheus_client.core import CounterMetricFamily, Metric
from prometheus_client.registry import Collector
from redis.asyncio import Redis
from sqlalchemy.exc import SQLAlchemyError

from app.db import Database
from app.errors import UnavailableError
from app.metrics.answers import AnswerMetrics
from app.metrics.api import TOP_TENANTS
from app.metrics.batches import BatchMetrics
from app.metrics.repository import Waiting, waiting_batches, waiting_exports, waiting_jobs
from app.promptly import promptly
from app.requests.jobs import LedgerJobs
from app.usage.reconcile_repository import DIFFERENCES
from engine.exposition import new_registry, render
from engine.transport import keys
from engine.transport.connection import open_async_redis, translated_errors
from engine.transport.errors import QueueUnavailableError

TIMEOUT_S = 1.0
JOB_KINDS = ("verify", "remove")
UNKNOWN = float("nan")

T = TypeVar("T")


class WorkerMetrics:
    """One per worker process: `look`, then `render`; `close` at the end."""

    def __init__(self, database: Database, redis_url: str, ledger: LedgerJobs) -> None:
        self.registry = new_registry("worker")
        self.registry.register(_LedgerCollector(ledger))
        self.answers = AnswerMetrics(self.registry, TOP_TENANTS, is_awaited=False)
        """Of batches."""
        self.batches = BatchMetrics(self.registry)
        self._database = database
        self._redis = open_async_redis(redis_url, max_connections=1)
        self._lag_records = self._gauge(
            "tenfold_ledger_lag_records", "Records of usage that are not in the ledger yet."
        )
        self._lag_seconds = self._gauge(
            "tenfold_ledger_lag_seconds", "How long the first of them has waited."
        )
        self._jobs = self._gauge("tenfold_jobs_waiting", "Jobs of adapters that are due.", "kind")
        self._jobs_oldest = self._gauge(
            "tenfold_jobs_oldest_wait_seconds", "How long the first of them has been due.", "kind"
        )
        self._exports = self._gauge(
            "tenfold_exports_waiting", "Events of usage that are due to be exported."
        )
        self._exports_oldest = self._gauge(
            "tenfold_exports_oldest_wait_seconds", "How long the first of them has been due."
        )
        self._batches = self._gauge(
            "tenfold_batches_waiting", "Batches that are due, and that no worker runs."
        )
        self._batches_oldest = self._gauge(
            "tenfold_batches_oldest_wait_seconds", "How long the first of them has been due."
        )
        self._differences = self._gauge(
            "tenfold_reconcile_differences",
            "What differs between acceptances, ledger, roll-ups and exports of the last hours.",
            "kind",
        )
        self.observe_differences(dict.fromkeys(DIFFERENCES, UNKNOWN))

    async def look(self) -> None:
        """Ask how things stand."""
        lag, jobs, exports, batches = await asyncio.gather(
            _known(self._lag()),
            _known(self._read_jobs()),
            _known(self._read_exports()),
            _known(self._read_batches()),
        )
        for (num, oldest), found in (
            ((self._lag_records, self._lag_seconds), lag),
            ((self._exports, self._exports_oldest), exports),
            ((self._batches, self._batches_oldest), batches),
        ):
            num.set(UNKNOWN if found is None else found.num)
            oldest.set(UNKNOWN if found is None else found.oldest_s)
        for kind in JOB_KINDS:
            found = None if jobs is None else jobs.get(kind, Waiting(0, 0.0))
            self._jobs.labels(kind).set(UNKNOWN if found is None else found.num)
            self._jobs_oldest.labels(kind).set(UNKNOWN if found is None else found.oldest_s)

    def observe_differences(self, num_by_kind: Mapping[str, float]) -> None:
        """What a reconciliation has found."""
        for kind, number in num_by_kind.items():
            self._differences.labels(kind).set(number)

    def render(self) -> bytes:
        return render(self.registry)

    async def close(self) -> None:
        await self._redis.aclose()

    async def _lag(self) -> Waiting:
        return await read_lag(self._redis)

    async def _read_jobs(self) -> dict[str, Waiting]:
        async with self._database.session() as session:
            return await waiting_jobs(session)

    async def _read_exports(self) -> Waiting:
        async with self._database.session() as session:
            return await waiting_exports(session)

    async def _read_batches(self) -> Waiting:
        async with self._database.session() as session:
            return await waiting_batches(session)

    def _gauge(self, name: str, what: str, *labels: str) -> Gauge:
        return Gauge(name, what, labels, registry=self.registry)


async def read_lag(redis: Redis) -> Waiting:
    """What of the usage stream is not in the ledger. Raises QueueUnavailableError."""
    with translated_errors():
        async with redis.pipeline(transaction=True) as pipe:
            pipe.xlen(keys.USAGE)
            pipe.xrange(keys.USAGE, count=1)
            pipe.time()
            replies = await pipe.execute()
    num, first, now = cast("tuple[int, list[tuple[bytes, Any]], tuple[int, int]]", replies)
    if not first:
        return Waiting(num, 0.0)
    said_at_ms = int(first[0][0].partition(b"-")[0])
    return Waiting(num, max(0.0, now[0] + now[1] / 1e6 - said_at_ms / 1000))


class _LedgerCollector(Collector):
    def __init__(self, ledger: LedgerJobs) -> None:
        self._ledger = ledger

    def collect(self) -> Iterator[Metric]:
        yield CounterMetricFamily(
            "tenfold_ledger_records",
            "Records of usage that were written into the ledger.",
            value=self._ledger.num_written,
        )
        refused = CounterMetricFamily(
            "tenfold_ledger_records_refused",
            "Records that were given up: unreadable, or refused by Postgres.",
            labels=["reason"],
        )
        for reason, number in self._ledger.num_refused.items():
            refused.add_metric([reason], number)
        yield refused
        yield CounterMetricFamily(
            "tenfold_requests_swept",
            "Requests that were ended because their API process had died.",
            value=self._ledger.num_swept,
        )


async def _known(asking: Coroutine[Any, Any, T]) -> T | None:
    try:
        return await promptly(asking, TIMEOUT_S)
    except (UnavailableError, QueueUnavailableError, SQLAlchemyError):
        return None
