"""The SQL of the worker's queue: verify a version, remove bytes.

Knows nothing of how a job is done. Invariant: a job is claimed with its row's lock, held till the
transaction ends, so that two workers never do the same one and a worker that dies gives it back.
"""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Literal

from sqlalchemy import delete, func, select, text, true, update
from sqlalchemy.ext.asyncio import AsyncSession

from app.db import worker_scope
from app.ids import new_id
from app.tables import AdapterJob

JobKind = Literal["verify", "remove"]
JOBS_CHANNEL = "tenfold_jobs"
MAX_BACKOFF_S = 3600
# Bytes outlive the version that is deleted: a request pinned to it may still wait in the queue, or
# be preempted and have to load its adapter again.
REMOVAL_DELAY_S = 600
GUARD_OVER_S = 1800
"""Older than that, an upload whose bytes are not locked is not about to put them."""

_NOTIFY = text("SELECT pg_notify(:channel, '')")


async def add_job(
    session: AsyncSession,
    tenant_id: str,
    kind: JobKind,
    subject: str,
    *,
    delay_s: float = 0,
    retain_until: datetime | None = None,
) -> None:
    """Queue a job, due in `delay_s`, and wake a worker when the transaction commits.

    In the tenant's scope. `retain_until`: of `AdapterJob`. Bytes that are to be removed without it
    are retained for nobody any longer.
    """
    if kind == "remove" and retain_until is None:
        await _end_retention(session, tenant_id, subject, delay_s)
    session.add(
        AdapterJob(
            id=new_id("job"),
            tenant_id=tenant_id,
            kind=kind,
            subject=subject,
            not_before=func.now() + timedelta(seconds=delay_s),
            retain_until=retain_until,
        )
    )
    await session.flush()
    await session.execute(_NOTIFY, {"channel": JOBS_CHANNEL})


async def add_guard(session: AsyncSession, tenant_id: str, locator: str, *, delay_s: float) -> str:
    """Queue the removal of bytes that are about to be put; its id. In the tenant's scope.

    It ends no retention of the same bytes: nobody has deleted anything.
    """
    guard = AdapterJob(
        id=new_id("job"),
        tenant_id=tenant_id,
        kind="remove",
        subject=locator,
        not_before=func.now() + timedelta(seconds=delay_s),
        is_guard=True,
    )
    session.add(guard)
    await session.flush()
    return guard.id


async def remove_guard(session: AsyncSession, tenant_id: str, guard_id: str) -> None:
    """The bytes have a version, or are gone. In the tenant's scope.

    A guard that a worker has in hand stays, and is not waited for: that one finds the bytes locked,
    comes back, and finds their version.
    """
    unclaimed = (
        select(AdapterJob.id)
        .where(AdapterJob.tenant_id == tenant_id, AdapterJob.id == guard_id)
        .with_for_update(skip_locked=True)
    )
    await session.execute(
        delete(AdapterJob)
        .where(AdapterJob.tenant_id == tenant_id, AdapterJob.id.in_(unclaimed))
        .execution_options(synchronize_session=False)
    )


async def forget_guards(session: AsyncSession, job: AdapterJob) -> None:
    """A guard does its work for all of the same bytes whose uploads are over: they are locked, and
    whoever has waited for that in vain has long been told so. In the tenant's scope.
    """
    over = (
        select(AdapterJob.id)
        .where(
            AdapterJob.tenant_id == job.tenant_id,
            AdapterJob.subject == job.subject,
            AdapterJob.is_guard,
            AdapterJob.id != job.id,
            AdapterJob.created_at < func.now() - timedelta(seconds=GUARD_OVER_S),
        )
        .with_for_update(skip_locked=True)
    )
    await session.execute(
        delete(AdapterJob)
        .where(AdapterJob.tenant_id == job.tenant_id, AdapterJob.id.in_(over))
        .execution_options(synchronize_session=False)
    )


async def claim_job(session: AsyncSession) -> AdapterJob | None:
    """The next job that is due, locked; verifications first. Sets the worker's scope."""
    await worker_scope(session)
    return await session.scalar(
        select(AdapterJob)
        .where(AdapterJob.not_before <= func.now())
        .order_by(AdapterJob.kind.desc(), AdapterJob.not_before)
        .limit(1)
        .with_for_update(skip_locked=True)
    )


async def is_removed_later(session: AsyncSession, job: AdapterJob) -> bool:
    """Whether another job, not yet due, is to remove the same bytes. In the tenant's scope.

    A guard is none: what was deleted waits for no upload. It leaves them to any other, due or not,
    which may retain them.
    """
    is_later = AdapterJob.not_before > func.now()
    found = await session.scalar(
        select(AdapterJob.id)
        .where(
            AdapterJob.tenant_id == job.tenant_id,
            AdapterJob.kind == "remove",
            AdapterJob.subject == job.subject,
            true() if job.is_guard else is_later,
            ~AdapterJob.is_guard,
        )
        .limit(1)
    )
    return found is not None


async def retain_job(session: AsyncSession, job: AdapterJob) -> None:
    """It has done what is to be done before, and comes back when the bytes are to go."""
    assert job.retain_until is not None
    await session.execute(
        update(AdapterJob)
        .where(AdapterJob.tenant_id == job.tenant_id, AdapterJob.id == job.id)
        .values(not_before=job.retain_until, attempts=0)
    )


async def finish_job(session: AsyncSession, job: AdapterJob) -> None:
    """Forget a job that is done, in the scope of the tenant it was about."""
    await session.execute(
        delete(AdapterJob).where(AdapterJob.tenant_id == job.tenant_id, AdapterJob.id == job.id)
    )


async def postpone_job(session: AsyncSession, job_id: str, attempts: int) -> None:
    """A job that failed waits longer each time. Sets the worker's scope."""
    await worker_scope(session)
    wait = timedelta(seconds=min(2**attempts, MAX_BACKOFF_S))
    await session.execute(
        update(AdapterJob)
        .where(AdapterJob.id == job_id)
        .values(attempts=attempts, not_before=func.now() + wait)
    )


async def _end_retention(
    session: AsyncSession, tenant_id: str, locator: str, delay_s: float
) -> None:
    due_at = func.now() + timedelta(seconds=delay_s)
    await session.execute(
        update(AdapterJob)
        .where(
            AdapterJob.tenant_id == tenant_id,
            AdapterJob.subject == locator,
            AdapterJob.retain_until.is_not(None),
        )
        .values(not_before=func.least(AdapterJob.not_before, due_at), retain_until=None)
    )
