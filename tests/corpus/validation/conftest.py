"""A base with weights in the place of the one that has only a shape: here adapters are run."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from app.adapters.certifier import Certifier, open_certifier
from app.adapters.jobs import JobRunner
from app.context import AppContext
from tests.builders.running_engine import RunningEngine
from tests.faults.real_base import write_real_base


@pytest.fixture(scope="session")
def tiny_base_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_real_base(tmp_path_factory.mktemp("bases") / "tiny")


@pytest.fixture
def engine(tmp_path: Path, redis_url: str, tiny_base_folder: Path) -> Iterator[RunningEngine]:
    """On the store that `settings` name."""
    with RunningEngine(tmp_path, redis_url, model=tiny_base_folder) as running:
        yield running


@pytest.fixture
async def certifier(context: AppContext) -> AsyncIterator[Certifier]:
    async with open_certifier(context.settings, context.base) as opened:
        yield opened


@pytest.fixture
def jobs(context: AppContext, certifier: Certifier) -> JobRunner:
    """A worker's jobs, done when the test says so; adapters are tried on whatever engine runs."""
    return JobRunner(
        context.database,
        context.store,
        context.base,
        context.now,
        model=context.settings.model,
        certifier=certifier,
        validator=context.validator,
    )
