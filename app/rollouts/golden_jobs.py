"""A worker's work on golden prompts: ask those of a rollout that waits, and write down what came.

Knows nothing of gates: `app.rollouts.jobs` judges what is written here. Invariants: one worker asks
a rollout's prompts at a time, for as long as it renews its claim; a rollout that was paused or has
ended meanwhile is written nothing of; no registry connection is held while engines are asked; where
nothing can be said it is tried again later.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial
from typing import Any

import structlog
from sqlalchemy.ext.asyncio import AsyncSession

from app.adapters.probing import tried_version
from app.adapters.residency import LOADABLE
from app.adapters.versions_repository import VersionRepository
from app.completions.trial import NotAnsweredError, TriedVersion
from app.db import Database, tenant_scope
from app.encryption import SealBrokenError
from app.repeating import repeat
from app.rollouts.golden import GoldenOutcome
from app.rollouts.golden_asking import Asker
from app.rollouts.golden_repository import change_golden, claim_golden, next_unasked
from app.rollouts.golden_schemas import GoldenPrompt
from app.rollouts.golden_sealing import GoldenSealer
from app.rollouts.tables import Rollout

log = structlog.get_logger()

INTERVAL_S = 1.0
RENEW_S = 5.0
LEASE = timedelta(seconds=20)
RETRY = timedelta(seconds=30)

OpenAsker = Callable[[], AbstractAsyncContextManager[Asker]]


@dataclass(slots=True)
class _Work:
    """Prompts that are this worker's to ask, `until` a time that it moves on."""

    tenant_id: str
    rollout_id: str
    prompts: list[GoldenPrompt]
    before: TriedVersion
    candidate: TriedVersion
    until: datetime


class GoldenJobs:
    """`run` until told to stop, then `close`."""

    def __init__(
        self,
        database: Database,
        queue_secrets: str,
        open_asker: OpenAsker,
        now: Callable[[], datetime],
    ) -> None:
        """open_asker: called when there is something to ask for the first time."""
        self._database = database
        self._sealer = GoldenSealer(queue_secrets)
        self._open_asker = open_asker
        self._now = now
        self._stack = AsyncExitStack()
        self._asker: Asker | None = None

    async def run(self, stopping: asyncio.Event) -> None:
        await repeat(
            partial(self.work_next, stopping),
            stopping,
            INTERVAL_S,
            postponed="golden_prompts_postponed",
        )

    async def work_next(self, stopping: asyncio.Event | None = None) -> bool:
        """Ask one rollout's prompts; False where none wait. Raises UnavailableError."""
        async with self._database.session() as session:
            found = await next_unasked(session, self._now())
            if found is None:
                return False
            tenant_id, rollout_id = found
            await tenant_scope(session, tenant_id)
            now = self._now()
            until = now + LEASE
            rollout = await claim_golden(session, tenant_id, rollout_id, now, until)
            work = None if rollout is None else await self._work_of(session, rollout, until)
            await session.commit()
        if work is not None:
            await self._do(work, stopping or asyncio.Event())
        return True

    async def close(self) -> None:
        await self._stack.aclose()

    async def _work_of(
        self, session: AsyncSession, rollout: Rollout, until: datetime
    ) -> _Work | None:
        """None where there is nothing to ask, or nobody; it stays as long as its claim."""
        versions = VersionRepository(session, rollout.tenant_id)
        before = await versions.get(rollout.from_version_id)
        candidate = await versions.get(rollout.to_version_id)
        if rollout.sealed_golden is None or before is None or candidate is None:
            return None
        if before.state not in LOADABLE or candidate.state not in LOADABLE:
            return None
        try:
            prompts = self._sealer.open(rollout.id, rollout.sealed_golden)
        except SealBrokenError:
            log.error("golden_prompts_unreadable", rollout_id=rollout.id)
            return None
        return _Work(
            rollout.tenant_id,
            rollout.id,
            prompts,
            tried_version(before),
            tried_version(candidate),
            until,
        )

    async def _do(self, work: _Work, stopping: asyncio.Event) -> None:
        asking = asyncio.create_task(self._ask(work), name=work.rollout_id)
        stopped = asyncio.create_task(stopping.wait())
        try:
            while True:
                await asyncio.wait(
                    (asking, stopped), timeout=RENEW_S, return_when=asyncio.FIRST_COMPLETED
                )
                if asking.done() or stopped.done():
                    break
                if not await self._renew(work):
                    log.info("golden_prompts_left", rollout_id=work.rollout_id)
                    return
            await self._end(work, asking)
        finally:
            for task in (asking, stopped):
                task.cancel()
            await asyncio.gather(asking, stopped, return_exceptions=True)

    async def _end(self, work: _Work, asking: asyncio.Task[GoldenOutcome]) -> None:
        if not asking.done():  # told to stop: another worker may begin at once
            await self._change(work, {"golden_due_at": self._now()})
            return
        error = asking.exception()
        if error is None:
            outcome = asking.result()
            told = {"golden_due_at": None, "golden_results": outcome.stored()}
            log.info(
                "golden_prompts_asked",
                rollout_id=work.rollout_id,
                num=outcome.num,
                num_failed=len(outcome.failed),
                num_failed_before=len(outcome.failed_before),
                is_written=await self._change(work, told),
            )
            return
        if isinstance(error, NotAnsweredError):
            log.warning("golden_prompts_not_asked", rollout_id=work.rollout_id, reason=str(error))
        else:  # whatever it is, it must not stop the rollouts behind it
            log.error("golden_prompts_failed", rollout_id=work.rollout_id, exc_info=error)
        await self._change(work, {"golden_due_at": self._now() + RETRY})

    async def _ask(self, work: _Work) -> GoldenOutcome:
        if self._asker is None:
            self._asker = await self._stack.enter_async_context(self._open_asker())
        failed, failed_before = await self._asker.failures(
            work.prompts, (work.candidate, work.before)
        )
        return GoldenOutcome(len(work.prompts), self._now().timestamp(), failed, failed_before)

    async def _renew(self, work: _Work) -> bool:
        until = self._now() + LEASE
        if not await self._change(work, {"golden_due_at": until}):
            return False
        work.until = until
        return True

    async def _change(self, work: _Work, values: Mapping[str, Any]) -> bool:
        async with self._database.session() as session:
            await tenant_scope(session, work.tenant_id)
            is_ours = await change_golden(
                session, work.tenant_id, work.rollout_id, work.until, values
            )
            await session.commit()
        return is_ours
