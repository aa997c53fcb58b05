"""`python -m app.worker`: does what waits in the registry and keeps the ledger, until a signal.

Knows nothing of HTTP. Invariants: NOTIFY makes the registry's jobs prompt and polling makes them
certain, so that a lost notification costs `POLL_INTERVAL_S` and no more; a signal lets what is at
hand finish; where one kind of work fails for our own mistake, the process ends and says so.
"""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import asyncpg
import structlog

from app.adapters.certifier import open_certifier
from app.adapters.jobs import JobRunner
from app.adapters.jobs_repository import JOBS_CHANNEL
from app.adapters.residency import QueueEngines
from app.audit.trail import worker_trail
from app.batches.jobs import BatchJobs
from app.chat_templates.sandbox import TemplateSandbox
from app.completions.tokenizer import read_special_tokens
from app.context import utc_now
from app.database_url import connect
from app.db import CONNECT_TIMEOUT_S, LOST, Database
from app.errors import UnavailableError
from app.idempotency.jobs import AnswerJobs
from app.imports.jobs import open_imports
from app.logging import configure_logging
from app.metrics.drift import DriftWatch
from app.metrics.worker import WorkerMetrics
from app.requests.jobs import LedgerJobs
from app.rollouts.golden_asking import open_asker
from app.rollouts.golden_jobs import GoldenJobs
from app.rollouts.jobs import RolloutJobs
from app.rollouts.samples import SampleBook
from app.schema_repository import read_schema
from app.settings import WorkerSettings
from app.uploads.jobs import UploadJobs
from app.usage.jobs import UsageJobs
from app.worker_health import health_port
from engine.transport.levers import EngineLevers
from lora.base_files import BaseFiles
from lora.base_spec import BaseSpec, UnsupportedBaseError
from lora.store_open import open_parts, open_store

log = structlog.get_logger()

POLL_INTERVAL_S = 2.0
STATEMENT_TIMEOUT_S = 300.0
"""Longer than any statement works: from then on a Postgres that says nothing is gone. An import
that waits so long for bytes, which somebody else puts down meanwhile, begins again."""
LEDGER_TIMEOUT_S = 10.0
"""The same for the ledger, whose statements are short, and for which everybody waits."""


def main() -> None:
    configure_logging("worker")
    # pydantic-settings fills the fields from the environment.
    asyncio.run(run(WorkerSettings()))


async def run(settings: WorkerSettings) -> None:
    """Work until SIGTERM or SIGINT."""
    stopping = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopping.set)
    url = settings.database_url
    database = Database(url, pool_size=6, statement_timeout_s=STATEMENT_TIMEOUT_S)
    ledger_database = Database(url, pool_size=1, statement_timeout_s=LEDGER_TIMEOUT_S)
    base = await asyncio.to_thread(BaseSpec.from_folder, settings.model, settings.model_id)
    model = await asyncio.to_thread(find_base_weights, settings.model, base)
    store = open_store(
        settings.adapter_store,
        cache=settings.adapter_copies,
        max_cache_bytes=settings.adapter_cache_bytes,
    )
    uploads = UploadJobs(database, open_parts(settings.adapter_store), utc_now)
    sandbox = TemplateSandbox(await asyncio.to_thread(read_special_tokens, settings.model))
    imports = open_imports(settings, database, store, base, sandbox, utc_now)
    peppers = settings.key_pepper.get_secret_value()
    levers = EngineLevers(settings.redis_url, secret=settings.queue_secret.get_secret_value())
    ledger = LedgerJobs(ledger_database, settings)
    usage = UsageJobs(database, settings, utc_now)
    rollouts = RolloutJobs(
        database,
        SampleBook(settings.redis_url),
        utc_now,
        lambda rollout_id: worker_trail(peppers, rollout_id, utc_now()),
    )
    golden = GoldenJobs(
        database,
        settings.queue_secret.get_secret_value(),
        lambda: open_asker(settings, base, store, sandbox),
        utc_now,
        timeout_s=settings.golden_timeout_s,
    )
    metrics = WorkerMetrics(database, settings.redis_url, ledger)
    batches = BatchJobs(
        database, settings, utc_now, answers=metrics.answers, metrics=metrics.batches
    )
    drift = DriftWatch(database, metrics, utc_now)
    log.info("worker_started")
    try:
        async with (
            health_port(settings.health_host, settings.health_port, database, metrics),
            open_certifier(settings, base) as certifier,
            asyncio.TaskGroup() as group,
        ):
            await _wait_for_schema(database, stopping)
            runner = JobRunner(
                database,
                store,
                base,
                utc_now,
                model=model,
                engines=QueueEngines(levers),
                certifier=certifier,
                trail_of=lambda job_id: worker_trail(peppers, job_id, utc_now()),
            )
            group.create_task(_do_jobs(settings.database_url, runner, stopping))
            group.create_task(ledger.run(stopping))
            group.create_task(usage.run(stopping))
            group.create_task(uploads.run(stopping))
            group.create_task(imports.run(stopping))
            group.create_task(rollouts.run(stopping))
            group.create_task(golden.run(stopping))
            group.create_task(batches.run(stopping))
            group.create_task(AnswerJobs(database).run(stopping))
            group.create_task(drift.run(stopping))
    finally:
        await levers.close()
        await ledger.close()
        await usage.close()
        await rollouts.close()
        await golden.close()
        await sandbox.close()
        await metrics.close()
        await ledger_database.close()
        await database.close()
    log.info("worker_stopped")


def find_base_weights(model: Path, base: BaseSpec) -> Path | None:
    """The base's folder where its weights lie beside its configuration; None where they do not."""
    try:
        BaseFiles.from_folder(model, base)
        return model
    except UnsupportedBaseError as error:
        log.warning("base_weights_not_here", reason=str(error))
        return None


async def _wait_for_schema(database: Database, stopping: asyncio.Event) -> None:
    """Until the registry answers, and with a schema that this code can work on."""
    while not stopping.is_set():
        try:
            schema = await read_schema(database)
            if schema.is_new_enough:
                return
            log.warning("registry_outdated", found=schema.found, needed=schema.needed)
        except UnavailableError as error:
            log.warning("registry_unreachable", error=error.internal)
        await _wait_for_any(stopping)


async def _do_jobs(database_url: str, runner: JobRunner, stopping: asyncio.Event) -> None:
    while not stopping.is_set():
        await _work_while_connected(database_url, runner, stopping)


async def _work_while_connected(
    database_url: str, runner: JobRunner, stopping: asyncio.Event
) -> None:
    """Do jobs as they come; returns when stopping, or a while after the registry was lost."""
    try:
        async with _listening(database_url) as (connection, notified):
            while not (stopping.is_set() or connection.is_closed()):
                notified.clear()
                if not await runner.run_next():
                    await _wait_for_any(notified, stopping)
    except (UnavailableError, *LOST) as error:
        log.warning("registry_unreachable", error=type(error).__name__)
        await _wait_for_any(stopping)


@asynccontextmanager
async def _listening(
    database_url: str,
) -> AsyncIterator[tuple[asyncpg.Connection, asyncio.Event]]:
    """A connection that listens, and an event: a job was queued, or the connection was lost."""
    notified = asyncio.Event()
    connection = await connect(database_url, timeout_s=CONNECT_TIMEOUT_S)
    try:
        connection.add_termination_listener(lambda _: notified.set())
        await connection.add_listener(JOBS_CHANNEL, lambda *_: notified.set())
        log.info("worker_listening")
        yield connection, notified
    finally:
        await connection.close(timeout=CONNECT_TIMEOUT_S)


async def _wait_for_any(*events: asyncio.Event) -> None:
    """Until one of the events is set, but no longer than the poll interval."""
    waiting = [asyncio.create_task(event.wait()) for event in events]
    await asyncio.wait(waiting, timeout=POLL_INTERVAL_S, return_when=asyncio.FIRST_COMPLETED)
    for task in waiting:
        task.cancel()


if __name__ == "__main__":
    main()
