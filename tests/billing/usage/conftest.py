"""A worker's jobs on what was used, and a day long past."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import UTC, datetime

import pytest

from app.settings import Settings
from app.usage.jobs import UsageJobs
from tests.builders.clock import Clock
from tests.builders.ledger import Ledger


@pytest.fixture
async def usage_jobs(ledger: Ledger, settings: Settings, clock: Clock) -> AsyncIterator[UsageJobs]:
    """A worker's, done when the test says so."""
    jobs = UsageJobs(ledger.database, settings, clock.now)
    yield jobs
    await jobs.close()


@pytest.fixture
def noon() -> datetime:
    """Of a day long past: its hours are over."""
    return datetime(2026, 3, 5, 12, 0, tzinfo=UTC)
