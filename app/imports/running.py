"""Runs one import: claims it, fetches, hands the files to the way in of every upload, tells.

Knows nothing of the process around it. Invariants: a job is written down in the scope of the tenant
whose it is, and only while it is this worker's; whoever dies at it loses it when its lease lapses,
and another one begins anew, but not for ever; what was cancelled stops at the next heartbeat; a
token is opened here, kept in memory, and gone from the registry when the job ends; one of the
worker's own is in no registry.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

import structlog

from app.adapters.intake import IntakeContext, accept_folder
from app.adapters.receive import max_bytes_by_name
from app.adapters.staging import staging
from app.adapters.storage_errors import storage_errors
from app.adapters.submission import Provenance, Submission
from app.audit.trail import AuditTrail
from app.db import tenant_scope, worker_scope
from app.encryption import SealBrokenError
from app.errors import ApiError, UnavailableError
from app.imports.errors import ImportFailure
from app.imports.fetching import Publisher, fetch_files
from app.imports.repository import ImportRepository, next_due
from app.imports.tables import Import
from app.imports.tokens import TokenSealer
from lora.store import WEIGHTS_FILE

log = structlog.get_logger()

HEARTBEAT_S = 1.0
LEASE = timedelta(seconds=30)
MAX_ATTEMPTS = 4  # that failed for a reason which may pass
MAX_BEGINNINGS = 8  # of workers that died at it, or were stopped
RETRY = timedelta(seconds=5)

OpenPublisher = Callable[[str, str | None], Publisher]
"""(source, token) -> whoever has the files. Raises ImportFailure."""


@dataclass(slots=True)
class Progress:
    bytes_done: int = 0
    bytes_total: int | None = None

    def advance(self, num_bytes: int) -> None:
        self.bytes_done += num_bytes

    def expect(self, num_bytes: int) -> None:
        self.bytes_total = (self.bytes_total or 0) + num_bytes


class ImportRunner:
    """trail_of: where it is written down what an import did, by its id."""

    def __init__(
        self,
        context: IntakeContext,
        open_publisher: OpenPublisher,
        trail_of: Callable[[str], AuditTrail],
        now: Callable[[], datetime],
        *,
        heartbeat_s: float = HEARTBEAT_S,
    ) -> None:
        self._context = context
        self._open_publisher = open_publisher
        self._trail_of = trail_of
        self._now = now
        self._heartbeat_s = heartbeat_s
        self._sealer = TokenSealer(context.settings.queue_secret.get_secret_value())

    async def run_next(self, stopping: asyncio.Event | None = None) -> bool:
        """Run one import; False where none is due. Raises UnavailableError without registry.

        `stopping` gives back what is under way: it may take an hour.
        """
        job = await self._claim()
        if job is None:
            return False
        if job.attempts > MAX_BEGINNINGS:
            await self._give_up(job)
            return True
        log.info("import_started", import_id=job.id, source=job.source, attempt=job.attempts)
        await self._run(job, stopping or asyncio.Event())
        return True

    async def _claim(self) -> Import | None:
        now = self._now()
        async with self._context.database.session() as session:
            await worker_scope(session)
            due = await next_due(session, now)
            if due is None:
                return None
            import_id, tenant_id = due
            await tenant_scope(session, tenant_id)
            job = await ImportRepository(session, tenant_id).claim(import_id, now, now + LEASE)
            await session.commit()
        return job

    async def _give_up(self, job: Import) -> None:
        """It may be what its workers died of."""
        failure = ImportFailure(
            "import_abandoned", f"The import was begun {MAX_BEGINNINGS} times and never ended."
        )
        ended = {"state": "failed", "error": told(failure), **self._closing()}
        await self._change(job, ended)
        log.error("import_abandoned", import_id=job.id, attempts=job.attempts)

    def _closing(self) -> dict[str, Any]:
        """Of an import that has ended."""
        return {"sealed_token": None, "lease_until": None, "ended_at": self._now()}

    async def _run(self, job: Import, stopping: asyncio.Event) -> None:
        progress = Progress()
        work = asyncio.create_task(self._import(job, progress), name=job.id)
        try:
            while not work.done():
                await asyncio.wait((work,), timeout=self._heartbeat_s)
                if stopping.is_set() and not work.done():
                    await self._change(job, {"state": "queued", "lease_until": None})
                    return
                if not work.done() and not await self._beat(job, progress):
                    log.info("import_stopped", import_id=job.id)
                    return
        finally:
            work.cancel()
            with suppress(asyncio.CancelledError, Exception):
                await work
        await self._end(job, work, progress)

    async def _beat(self, job: Import, progress: Progress) -> bool:
        return await self._change(
            job,
            {
                "bytes_done": progress.bytes_done,
                "bytes_total": progress.bytes_total,
                "lease_until": self._now() + LEASE,
            },
        )

    async def _end(self, job: Import, work: asyncio.Task[str], progress: Progress) -> None:
        counts = {"bytes_done": progress.bytes_done, "bytes_total": progress.bytes_total}
        error = work.exception()
        if error is None:
            ended: dict[str, Any] = {"state": "succeeded", "version_id": work.result()}
        elif _is_temporary(error) and job.attempts < MAX_ATTEMPTS:
            later = self._now() + RETRY * 2**job.attempts
            log.warning("import_postponed", import_id=job.id, cause=str(error))
            await self._change(job, {**counts, "state": "queued", "lease_until": later})
            return
        else:
            if not isinstance(error, ApiError | ImportFailure):
                log.error("import_crashed", import_id=job.id, exc_info=error)
            ended = {"state": "failed", "error": told(error)}
        await self._change(job, {**counts, **ended, **self._closing()})
        log.info("import_ended", import_id=job.id, state=ended["state"])

    async def _import(self, job: Import, progress: Progress) -> str:
        """The id of the version that it came to."""
        settings = self._context.settings
        try:
            async with asyncio.timeout(settings.import_timeout_s) as limit:
                publisher = self._open_publisher(job.source, self._token_of(job))
                revision = job.revision or await publisher.pin()
                if revision is not None and not await self._change(job, {"revision": revision}):
                    raise ImportFailure("import_ended", "The import was taken away.")
                async with staging(settings.data_dir) as folder:
                    with storage_errors():
                        files = await fetch_files(
                            publisher,
                            revision,
                            folder,
                            max_bytes_by_name(settings.max_upload_bytes),
                            expect=progress.expect,
                            progress=progress.advance,
                        )
                    _check_sha256(job, files[WEIGHTS_FILE].sha256)
                    version = await accept_folder(
                        self._context,
                        job.tenant_id,
                        job.adapter_id,
                        folder,
                        files,
                        _submission(job, revision),
                        self._trail_of(job.id),
                    )
                return version.id
        except TimeoutError as error:
            if not limit.expired():
                raise
            raise ImportFailure(
                "import_timeout", f"The import took more than {settings.import_timeout_s:g} s."
            ) from error

    def _token_of(self, job: Import) -> str | None:
        if job.credential_ref is not None:
            return self._credential(job.credential_ref)
        if job.sealed_token is None:
            return None
        try:
            return self._sealer.open(job.id, job.sealed_token)
        except SealBrokenError as error:
            raise ImportFailure(
                "import_token_lost", "The token cannot be read any more. Import again."
            ) from error

    def _credential(self, name: str) -> str:
        token = self._context.settings.import_tokens.get(name)
        if token is None:
            raise ImportFailure(
                "import_credential_unknown", f"No worker has a credential '{name}'."
            )
        return token

    async def _change(self, job: Import, values: Mapping[str, Any]) -> bool:
        async with self._context.database.session() as session:
            await tenant_scope(session, job.tenant_id)
            imports = ImportRepository(session, job.tenant_id)
            is_ours = await imports.change(job.id, job.attempts, values)
            await session.commit()
        return is_ours


def _submission(job: Import, revision: str | None) -> Submission:
    provenance = Provenance(
        uploaded_by=job.created_by,
        via="import",
        source=job.source,
        revision=revision,
        license=job.license,
    )
    return Submission(provenance, job.strict, job.activates)


def told(error: BaseException) -> dict[str, Any]:
    """A failure as its import shows it: what an upload would have been answered."""
    if isinstance(error, ApiError):
        return {"code": error.code, "message": error.message, **error.details}
    if isinstance(error, ImportFailure):
        return {"code": error.code, "message": error.message}
    return {"code": "internal_error", "message": "The server had an error."}


def _is_temporary(error: BaseException) -> bool:
    if isinstance(error, ImportFailure):
        return error.is_temporary
    return isinstance(error, UnavailableError)


def _check_sha256(job: Import, found: str) -> None:
    if job.sha256 is not None and job.sha256 != found:
        raise ImportFailure(
            "digest_mismatch", f"'{WEIGHTS_FILE}' is not the file that 'sha256' names."
        )
