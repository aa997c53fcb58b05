"""Engines that answer golden prompts as a test says, and workers that ask when it says so."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import nullcontext
from dataclasses import replace

import pytest

from app.completions.trial import trials_of
from app.context import AppContext
from app.rollouts.golden_asking import Asker
from app.rollouts.golden_jobs import GoldenJobs
from lora.base_spec import BaseSpec
from tests.builders.queue_secret import QUEUE_SECRET
from tests.builders.stub_engine import StubEngine
from tests.corpus.lifecycle.golden.world import Replies

NewJobs = Callable[..., GoldenJobs]


@pytest.fixture
def replies(context: AppContext) -> Replies:
    return Replies(context)


@pytest.fixture
def engine(redis_url: str, replies: Replies) -> Iterator[StubEngine]:
    with StubEngine(redis_url, reply=replies, tokens_per_step=32) as running:
        yield running


@pytest.fixture
async def new_jobs(context: AppContext) -> AsyncIterator[NewJobs]:
    """Of a worker that works when the test says so, at the API's own end of the queue."""
    made: list[GoldenJobs] = []

    def new_jobs(
        secret: str = QUEUE_SECRET, base: BaseSpec | None = None, timeout_s: float = 60.0
    ) -> GoldenJobs:
        asker = Asker(replace(trials_of(context), base=base or context.base))
        jobs = GoldenJobs(
            context.database, secret, lambda: nullcontext(asker), context.now, timeout_s=timeout_s
        )
        made.append(jobs)
        return jobs

    yield new_jobs
    for jobs in made:
        await jobs.close()


@pytest.fixture
def golden(new_jobs: NewJobs) -> GoldenJobs:
    return new_jobs()
