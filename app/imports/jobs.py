"""A worker's imports: a few at a time, as they come.

Knows nothing of how one is run. Invariant: a registry that is away only postpones.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress

import structlog

from app.errors import UnavailableError
from app.imports.running import ImportRunner

log = structlog.get_logger()

INTERVAL_S = 2.0
NUM_AT_ONCE = 2


class ImportJobs:
    def __init__(self, runner: ImportRunner) -> None:
        self._runner = runner

    async def run(self, stopping: asyncio.Event) -> None:
        async with asyncio.TaskGroup() as group:
            for _ in range(NUM_AT_ONCE):
                group.create_task(self._repeat(stopping))

    async def _repeat(self, stopping: asyncio.Event) -> None:
        while not stopping.is_set():
            try:
                if await self._runner.run_next(stopping):
                    continue
            except UnavailableError as error:
                log.warning("imports_postponed", error=str(error))
            with suppress(TimeoutError):
                await asyncio.wait_for(stopping.wait(), INTERVAL_S)
