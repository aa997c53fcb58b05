"""A job is done again until it is time to stop; what it may fail of only postpones it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest
from structlog.testing import capture_logs

from app.errors import UnavailableError
from app.repeating import repeat, rest

LONG_S = 3600.0


class Job:
    """Counts how often it was done, and stops its worker the third time."""

    def __init__(self, outcome: Callable[[], object]) -> None:
        self.stopping = asyncio.Event()
        self.num_done = 0
        self._outcome = outcome

    async def __call__(self) -> object:
        self.num_done += 1
        if self.num_done == 3:
            self.stopping.set()
        return self._outcome()

    async def run(self, interval_s: float) -> None:
        async with asyncio.timeout(30):
            await repeat(self, self.stopping, interval_s, postponed="job_postponed")


def away() -> object:
    raise UnavailableError(internal="the registry")


async def test_while_there_is_more_it_goes_on_at_once_and_ends_when_told() -> None:
    job = Job(lambda: 1)
    await job.run(LONG_S)
    assert job.num_done == 3


async def test_where_there_is_nothing_it_waits_and_looks_again() -> None:
    job = Job(lambda: 0)
    await job.run(0.001)
    assert job.num_done == 3
    waiting = Job(lambda: 0)
    task = asyncio.create_task(waiting.run(LONG_S))
    await asyncio.sleep(0)
    waiting.stopping.set()
    await task
    assert waiting.num_done == 1, "it was told to stop while it waited"


async def test_what_a_job_may_fail_of_is_logged_and_tried_again() -> None:
    job = Job(away)
    with capture_logs() as logs:
        await job.run(0.001)
    assert [each["event"] for each in logs] == ["job_postponed"] * 3


async def test_a_mistake_is_raised() -> None:
    """The control."""
    with pytest.raises(ZeroDivisionError):
        await Job(lambda: 1 // 0).run(LONG_S)


async def test_who_was_told_to_stop_begins_nothing_and_rests_no_longer() -> None:
    job = Job(lambda: 1)
    job.stopping.set()
    await job.run(LONG_S)
    async with asyncio.timeout(30):
        await rest(job.stopping, LONG_S)
    assert job.num_done == 0
