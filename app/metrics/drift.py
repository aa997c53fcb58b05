"""Reconciles the last hours again and again, so that what does not balance raises an alarm.

Knows nothing of Prometheus but where to put a number. Invariant: only hours are looked at that have
been rolled up by then; a registry that is away only postpones.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import datetime, timedelta

import structlog
from sqlalchemy.exc import SQLAlchemyError

from app.db import Database, billing_scope
from app.errors import UnavailableError
from app.metrics.worker import WorkerMetrics
from app.repeating import rest
from app.usage.reconcile import reconcile

log = structlog.get_logger()

INTERVAL_S = 600.0
RETRY_S = 15.0
SETTLED = timedelta(hours=2)
HOURS = 6
HOUR = timedelta(hours=1)


class DriftWatch:
    """`run` until told to stop."""

    def __init__(
        self, database: Database, metrics: WorkerMetrics, now: Callable[[], datetime]
    ) -> None:
        self._database = database
        self._metrics = metrics
        self._now = now

    async def run(self, stopping: asyncio.Event) -> None:
        while not stopping.is_set():
            wait_s = INTERVAL_S
            try:
                await self.look()
            except (UnavailableError, SQLAlchemyError) as error:
                log.warning("reconcile_postponed", error=type(error).__name__)
                wait_s = RETRY_S
            await rest(stopping, wait_s)

    async def look(self) -> int:
        """Reconcile once; how many differences there are."""
        until = (self._now() - SETTLED).replace(minute=0, second=0, microsecond=0)
        async with self._database.session() as session:
            await billing_scope(session)
            found = await reconcile(session, until - HOURS * HOUR, until, tenant_id=None, limit=1)
        self._metrics.observe_differences(found.num_differences)
        num = sum(found.num_differences.values())
        if num:
            log.error("ledger_differs", num_differences=num, kinds=found.num_differences)
        return num
