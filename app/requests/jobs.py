"""The ledger's work in a worker process: take in what was used, sweep, make partitions ahead.

Knows nothing of what a record says. Invariant: a dependency that is away only postpones; nothing is
swept before all that had come is written.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping

import structlog

from app.admission.settlement import Settler
from app.db import Database
from app.errors import UnavailableError
from app.repeating import rest
from app.requests.consumer import UsageConsumer
from app.requests.repository import LedgerRepository
from app.requests.sweeper import Sweeper
from app.settings import WorkerSettings
from engine.transport.connection import open_async_redis
from engine.transport.errors import QueueUnavailableError

log = structlog.get_logger()

RETRY_S = 0.5
PARTITION_DAYS = 7
PARTITION_INTERVAL_S = 3600.0


class LedgerJobs:
    """`run` until told to stop, then `close`."""

    def __init__(self, database: Database, settings: WorkerSettings) -> None:
        self._database = database
        self._redis = open_async_redis(settings.redis_url, max_connections=4)
        self._sweep_interval_s = settings.sweep_interval_s
        self._consumer = UsageConsumer(
            database, self._redis, secret=settings.queue_secret.get_secret_value()
        )
        self._settler = Settler(database, self._redis)
        self._sweeper = Sweeper(database, self._redis, api_lost_after_s=settings.api_lost_after_s)
        self.num_swept = 0
        """Requests that were ended for API processes that had died."""

    @property
    def num_written(self) -> int:
        """Records that are in the ledger since this process began."""
        return self._consumer.num_written

    @property
    def num_refused(self) -> Mapping[str, int]:
        """Records that were given up, by why."""
        return self._consumer.num_refused

    async def run(self, stopping: asyncio.Event) -> None:
        """Whatever is due, one thing at a time."""
        sweep_at = partitions_at = 0.0
        while not stopping.is_set():
            now = time.monotonic()
            try:
                if now >= partitions_at:
                    await self._make_partitions()
                    partitions_at = now + PARTITION_INTERVAL_S
                await self._consumer.run_once()
                if now >= sweep_at and self._consumer.is_caught_up:
                    self.num_swept += await self._sweeper.sweep()
                    await self._settler.look_after()
                    sweep_at = now + self._sweep_interval_s
            except (UnavailableError, QueueUnavailableError) as error:
                log.warning("ledger_postponed", error=str(error))
                await rest(stopping, RETRY_S)

    async def close(self) -> None:
        await self._redis.aclose()

    async def _make_partitions(self) -> None:
        async with self._database.session() as session:
            num_made = await LedgerRepository(session).ensure_partitions(PARTITION_DAYS)
            await session.commit()
        if num_made:
            log.info("request_partitions_made", num_days=num_made)
