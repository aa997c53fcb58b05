"""A worker's imports: a few at a time, as they come.

Knows nothing of how one is run. Invariant: a registry that is away only postpones.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime
from functools import partial

from app.adapters.turns import Turns
from app.adapters.validator import Validator
from app.audit.trail import worker_trail
from app.chat_templates.sandbox import TemplateSandbox
from app.db import Database
from app.imports.publishers import Publishers
from app.imports.running import ImportRunner
from app.repeating import repeat
from app.settings import WorkerSettings
from lora.base_spec import BaseSpec
from lora.store import AdapterStore
from lora.store_open import PLAIN_HTTP

INTERVAL_S = 2.0
NUM_AT_ONCE = 2


class ImportJobs:
    def __init__(self, runner: ImportRunner) -> None:
        self._runner = runner

    async def run(self, stopping: asyncio.Event) -> None:
        async with asyncio.TaskGroup() as group:
            for _ in range(NUM_AT_ONCE):
                work = partial(self._runner.run_next, stopping)
                group.create_task(repeat(work, stopping, INTERVAL_S, postponed="imports_postponed"))


@dataclass(frozen=True, slots=True)
class WorkerIntake:
    """What the way in of every upload needs (`app.adapters.intake.IntakeContext`)."""

    settings: WorkerSettings
    database: Database
    store: AdapterStore
    base: BaseSpec
    validator: Validator
    sandbox: TemplateSandbox
    keeping: Turns = field(default_factory=Turns)


def open_imports(
    settings: WorkerSettings,
    database: Database,
    store: AdapterStore,
    base: BaseSpec,
    sandbox: TemplateSandbox,
    now: Callable[[], datetime],
) -> ImportJobs:
    """The sandbox stays the caller's.

    Raises ValueError for an allow-list or a network that is none, OSError without the CA.
    """
    intake = WorkerIntake(settings, database, store, base, Validator(), sandbox)
    # A bucket that is asked without TLS is where imports find theirs, too.
    is_plain = PLAIN_HTTP in settings.adapter_store.partition("://")[0]
    publishers = Publishers(
        settings, bucket_options={"client_options": {"allow_http": True}} if is_plain else None
    )
    peppers = settings.key_pepper.get_secret_value()
    runner = ImportRunner(
        intake, publishers.open, lambda job_id: worker_trail(peppers, job_id, now()), now
    )
    return ImportJobs(runner)
