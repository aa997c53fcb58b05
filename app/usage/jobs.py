"""A worker's work on what was used: date stray events, roll hours up, export.

Knows nothing of how. Invariant: a registry that is away only postpones; exports wait for a slow
receiver alone.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import datetime, timedelta

import structlog

from app.db import Database
from app.repeating import repeat
from app.requests.repository import LedgerRepository
from app.settings import WorkerSettings
from app.usage.changes_repository import date_events, has_undated_events
from app.usage.export import UsageExporter
from app.usage.rollups_repository import roll_up

log = structlog.get_logger()

INTERVAL_S = 1.0
BATCH = 100
# An hour is rolled up when most of what was accepted in it has ended; what ends later, again.
GRACE = timedelta(hours=1, minutes=5)


class UsageJobs:
    """`run` until told to stop, then `close`."""

    def __init__(
        self, database: Database, settings: WorkerSettings, now: Callable[[], datetime]
    ) -> None:
        self._database = database
        self._now = now
        self._exporter = UsageExporter(database, settings)

    async def run(self, stopping: asyncio.Event) -> None:
        async with asyncio.TaskGroup() as group:
            for work in (self.date, self.roll_up, self._exporter.run_once):
                group.create_task(repeat(work, stopping, INTERVAL_S, postponed="usage_postponed"))

    async def date(self) -> int:
        """Complete events that came without their acceptance; how many."""
        async with self._database.session() as session:
            if not await has_undated_events(session):
                return 0
            await LedgerRepository(session).open()
            num_dated = await date_events(session, BATCH)
            await session.commit()
        return num_dated

    async def roll_up(self) -> int:
        """Roll up hours that are over; how many."""
        async with self._database.session() as session:
            num_hours = await roll_up(session, self._now() - GRACE, BATCH)
            await session.commit()
        if num_hours:
            log.info("usage_rolled_up", num_hours=num_hours)
        return num_hours

    async def close(self) -> None:
        await self._exporter.close()
