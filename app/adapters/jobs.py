"""Does the worker's jobs, one at a time: verify a version, remove bytes.

Knows nothing of the process around it. Invariants: a job is done in the scope of the tenant it is
about; a job that fails is postponed, so that it never keeps others from being done; bytes that some
version may still be served from are not removed.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path

import structlog
from sqlalchemy.ext.asyncio import AsyncSession

from app.adapters.certifier import Certifier, NotTriedError
from app.adapters.erasure import (
    MAX_SILENT_TRIES,
    NO_ENGINES,
    Engines,
    end_what_runs,
    erase,
    finish_deletion,
)
from app.adapters.job_trail import TrailOf, record_moves, watch
from app.adapters.jobs_repository import (
    claim_job,
    finish_job,
    forget_guards,
    is_removed_later,
    postpone_job,
    retain_job,
)
from app.adapters.validator import Validator
from app.adapters.verification import Verifier, verify_version
from app.adapters.versions_repository import is_needed, try_lock_bytes
from app.db import Database, tenant_scope
from app.errors import UnavailableError
from app.tables import AdapterJob
from lora.base_spec import BaseSpec
from lora.store import AdapterStore

log = structlog.get_logger()

MAX_TRIAL_ATTEMPTS = 3  # for how long a version waits for an engine that could try it


class BytesBusyError(Exception):
    """Somebody puts the bytes down, or removes them; that may take long, and other jobs wait."""


@dataclass(frozen=True, slots=True)
class JobRunner:
    """`model`, `certifier`: of `app.adapters.verification.Verifier`.

    `trail_of`: where it is written down what a job did, by the job's id; None: nowhere.
    """

    database: Database
    store: AdapterStore
    base: BaseSpec
    now: Callable[[], datetime]
    model: Path | None = None
    engines: Engines = NO_ENGINES
    certifier: Certifier | None = None
    validator: Validator = field(default_factory=Validator)
    trail_of: TrailOf | None = None

    async def run_next(self) -> bool:
        """Do one job; False where none is due. Raises UnavailableError without registry."""
        async with self.database.session() as session:
            job = await claim_job(session)
            if job is None:
                return False
            job_id, attempts = job.id, job.attempts + 1
            try:
                await tenant_scope(session, job.tenant_id)
                watched = await watch(session, job)
                is_over = await self._do(session, job)
                if self.trail_of is not None:
                    await record_moves(session, watched, self.trail_of(job.id))
                if is_over:
                    await finish_job(session, job)
                await session.commit()
                return True
            except UnavailableError:
                raise
            except NotTriedError as error:
                attempts = min(attempts, MAX_TRIAL_ATTEMPTS)
                log.info("adapter_not_tried", job_id=job_id, reason=str(error))
                await session.rollback()
            except BytesBusyError:
                attempts -= 1
                await session.rollback()
            except Exception:  # whatever it is, it must not stop the jobs behind it
                log.exception("job_failed", job_id=job_id, kind=job.kind, attempts=attempts)
                await session.rollback()
        async with self.database.session() as session:
            await postpone_job(session, job_id, attempts)
            await session.commit()
        return True

    async def _do(self, session: AsyncSession, job: AdapterJob) -> bool:
        """Whether all of it is done."""
        if job.kind == "verify":
            verifier = Verifier(self.validator, self.store, self.base, self.model, self.certifier)
            trail = None if self.trail_of is None else self.trail_of(job.id)
            await verify_version(session, verifier, job.tenant_id, job.subject, self.now(), trail)
            return True
        return await self._remove(session, job)

    async def _remove(self, session: AsyncSession, job: AdapterJob) -> bool:
        tenant_id, locator = job.tenant_id, job.subject
        if not await try_lock_bytes(session, locator):
            raise BytesBusyError
        is_shared = await is_needed(session, tenant_id, locator)
        is_patient = job.attempts + 1 < MAX_SILENT_TRIES
        if job.retain_until is not None and job.retain_until > self.now():
            if not is_shared:
                await end_what_runs(self.engines, tenant_id, locator, is_patient=is_patient)
            await retain_job(session, job)
            return False
        if await is_removed_later(session, job):
            return True
        if job.is_guard:
            await forget_guards(session, job)
        if is_shared:
            await finish_deletion(session, tenant_id, locator)
            return True
        await erase(
            session,
            self.store,
            self.engines,
            tenant_id,
            locator,
            self.now(),
            is_patient=is_patient,
        )
        return True
