"""A worker's work on golden prompts: ask those of rollouts that wait, and write down what came.

Knows nothing of gates: `app.rollouts.jobs` judges what is written here. Invariants: one worker asks
a rollout's prompts at a time, for as long as it renews its claim; of a few rollouts that are asked
at once no two are of one tenant; a rollout that was paused or has ended meanwhile is written
nothing of; no registry connection is held while engines are asked; where nothing can be said it is
tried again later, but for `PATIENCE` alone where it is not engines that are waited for; prompts
that take too long, once they are being asked, fail their gate, so that nobody's turn is for ever.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from functools import partial
from typing import Any

import structlog
from sqlalchemy.ext.asyncio import AsyncSession

from app.adapters.probing import tried_version
from app.adapters.states import LOADABLE
from app.adapters.versions_repository import VersionRepository
from app.completions.trial import NotAnsweredError, TriedVersion
from app.db import Database, tenant_scope
from app.encryption import SealBrokenError
from app.repeating import repeat
from app.rollouts.golden import GoldenOutcome
from app.rollouts.golden_asking import Asker, CannotBeAskedError
from app.rollouts.golden_repository import change_golden, claim_golden, list_unasked
from app.rollouts.golden_schemas import GoldenPrompt
from app.rollouts.golden_sealing import GoldenSealer
from app.rollouts.golden_turns import Turns
from app.rollouts.tables import Rollout
from app.tables import AdapterVersion
from engine.transport.errors import QueueUnavailableError

log = structlog.get_logger()

INTERVAL_S = 1.0
RENEW_S = 5.0
LEASE = timedelta(seconds=20)
RETRY = timedelta(seconds=30)
NUM_AT_ONCE = 4  # rollouts, of as many tenants
# With what cannot be asked: while secrets or the base are changed, workers know either.
PATIENCE = timedelta(minutes=10)

OpenAsker = Callable[[], AbstractAsyncContextManager[Asker]]


@dataclass(slots=True)
class _Work:
    """Prompts that are this worker's to ask, `until` a time that it moves on.

    `since`: when the rollout came to where it is, by itself or resumed.
    """

    tenant_id: str
    rollout_id: str
    sealed: bytes | None
    versions: tuple[AdapterVersion | None, AdapterVersion | None]
    since: datetime
    until: datetime
    prompts: list[GoldenPrompt] = field(default_factory=list)

    @property
    def tried(self) -> tuple[TriedVersion, TriedVersion]:
        """The candidate, and what it is to replace. Raises CannotBeAskedError."""
        candidate, before = self.versions
        if candidate is None or before is None:
            raise CannotBeAskedError("version_not_active")
        if not {candidate.state, before.state}.issubset(LOADABLE):
            raise CannotBeAskedError("version_not_active")
        return tried_version(candidate), tried_version(before)


class GoldenJobs:
    """`run` until told to stop, then `close`."""

    def __init__(
        self,
        database: Database,
        queue_secrets: str,
        open_asker: OpenAsker,
        now: Callable[[], datetime],
        *,
        timeout_s: float,
    ) -> None:
        """open_asker: called when there is something to ask for the first time. timeout_s: for all
        of a rollout's prompts together.
        """
        self._database = database
        self._sealer = GoldenSealer(queue_secrets)
        self._open_asker = open_asker
        self._now = now
        self._timeout_s = timeout_s
        self._turns = Turns()
        self._stack = AsyncExitStack()
        self._opening = asyncio.Lock()
        self._asker: Asker | None = None

    async def run(self, stopping: asyncio.Event) -> None:
        async with asyncio.TaskGroup() as group:
            for _ in range(NUM_AT_ONCE):
                work = partial(self.work_next, stopping)
                group.create_task(
                    repeat(work, stopping, INTERVAL_S, postponed="golden_prompts_postponed")
                )

    async def work_next(self, stopping: asyncio.Event | None = None) -> bool:
        """Ask one rollout's prompts; False where none wait whose turn it is.

        Raises UnavailableError.
        """
        async with self._database.session() as session:
            waiting = await list_unasked(session, self._now())
        tenant_id = self._turns.take(waiting)
        if tenant_id is None:
            return False
        try:
            work = await self._claim(tenant_id, waiting[tenant_id])
            if work is not None:
                await self._do(work, stopping or asyncio.Event())
        finally:
            self._turns.end(tenant_id)
        return True

    async def close(self) -> None:
        await self._stack.aclose()

    async def _claim(self, tenant_id: str, rollout_id: str) -> _Work | None:
        """None where somebody was quicker."""
        async with self._database.session() as session:
            await tenant_scope(session, tenant_id)
            now = self._now()
            until = now + LEASE
            rollout = await claim_golden(session, tenant_id, rollout_id, now, until)
            work = None if rollout is None else await _work_of(session, rollout, until)
            await session.commit()
        return work

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

    async def _ask(self, work: _Work) -> GoldenOutcome:
        """Raises CannotBeAskedError, NotAnsweredError, QueueUnavailableError."""
        work.prompts = self._opened(work)
        versions = work.tried
        async with self._opening:
            if self._asker is None:
                self._asker = await self._stack.enter_async_context(self._open_asker())
        try:
            async with asyncio.timeout(self._timeout_s) as limit:
                failed, failed_before = await self._asker.failures(work.prompts, versions)
        except TimeoutError:
            if not limit.expired():
                raise
            num, now_s = len(work.prompts), self._now().timestamp()
            return GoldenOutcome.of_none_asked(num, now_s, "golden_prompts_timeout")
        return GoldenOutcome(len(work.prompts), self._now().timestamp(), failed, failed_before)

    def _opened(self, work: _Work) -> list[GoldenPrompt]:
        if work.sealed is None:
            raise CannotBeAskedError("golden_prompts_missing")
        try:
            return self._sealer.open(work.rollout_id, work.sealed)
        except SealBrokenError as error:
            raise CannotBeAskedError("golden_prompts_unreadable") from error

    async def _end(self, work: _Work, asking: asyncio.Task[GoldenOutcome]) -> None:
        if not asking.done():  # told to stop: another worker may begin at once
            await self._change(work, {"golden_due_at": self._now()})
            return
        error = asking.exception()
        if error is None:
            await self._write(work, asking.result())
        elif isinstance(error, NotAnsweredError | QueueUnavailableError):
            log.warning("golden_prompts_not_asked", rollout_id=work.rollout_id, reason=str(error))
            await self._retry(work)
        elif isinstance(error, CannotBeAskedError):
            log.warning("golden_prompts_unaskable", rollout_id=work.rollout_id, reason=str(error))
            await self._retry_or_fail(work, str(error))
        else:  # whatever it is, it must not stop the rollouts behind it
            log.error("golden_prompts_failed", rollout_id=work.rollout_id, exc_info=error)
            await self._retry_or_fail(work, "internal_error")

    async def _write(self, work: _Work, outcome: GoldenOutcome) -> None:
        told = {"golden_due_at": None, "golden_results": outcome.stored()}
        log.info(
            "golden_prompts_asked",
            rollout_id=work.rollout_id,
            num=outcome.num,
            num_failed=len(outcome.failed),
            num_failed_before=len(outcome.failed_before),
            problem=outcome.problem,
            is_written=await self._change(work, told),
        )

    async def _retry(self, work: _Work) -> None:
        await self._change(work, {"golden_due_at": self._now() + RETRY})

    async def _retry_or_fail(self, work: _Work, problem: str) -> None:
        """Its gate fails where it has been tried for long enough."""
        now = self._now()
        if now - work.since < PATIENCE:
            await self._retry(work)
            return
        num = max(1, len(work.prompts))
        await self._write(work, GoldenOutcome.of_none_asked(num, now.timestamp(), problem))

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


async def _work_of(session: AsyncSession, rollout: Rollout, until: datetime) -> _Work:
    versions = VersionRepository(session, rollout.tenant_id)
    return _Work(
        rollout.tenant_id,
        rollout.id,
        rollout.sealed_golden,
        (await versions.get(rollout.to_version_id), await versions.get(rollout.from_version_id)),
        rollout.step_since,
        until,
    )
