"""A worker's work on rollouts: look at each that is due, and move it where its gates say.

Knows nothing of the process around it. Invariants: a rollout is moved with its adapter and its row
locked, so that two workers never move it at once; one that cannot be worked on waits a while and
keeps no other from being worked on; samples that cannot be read are no reason to go anywhere.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import datetime

import structlog
from sqlalchemy.ext.asyncio import AsyncSession

from app.adapters.repository import AdapterRepository
from app.audit.trail import AuditTrail
from app.db import Database, tenant_scope
from app.errors import ConflictError, UnavailableError
from app.repeating import repeat
from app.rollouts import service
from app.rollouts.decision import Decision, Next, decide
from app.rollouts.repository import RolloutRepository, list_due
from app.rollouts.samples import SampleBook
from app.rollouts.schemas import RolloutView, describe_finding
from app.rollouts.tables import Rollout
from app.tables import Adapter
from engine.transport.errors import QueueUnavailableError

log = structlog.get_logger()

INTERVAL_S = 1.0
TROUBLE_S = 30.0
BATCH = 100


class RolloutJobs:
    """`run` until told to stop, then `close`."""

    def __init__(
        self,
        database: Database,
        samples: SampleBook,
        now: Callable[[], datetime],
        trail_of: Callable[[str], AuditTrail],
    ) -> None:
        """trail_of: where it is written down what was done to a rollout, by its id."""
        self._database = database
        self._samples = samples
        self._now = now
        self._trail_of = trail_of

    async def run(self, stopping: asyncio.Event) -> None:
        await repeat(self.work, stopping, INTERVAL_S, postponed="rollouts_postponed")

    async def work(self) -> int:
        """Look at every rollout that is due; how many were moved. Raises UnavailableError."""
        async with self._database.session() as session:
            due = await list_due(session, self._now(), BATCH)
        num_moved = 0
        for tenant_id, rollout_id in due:
            num_moved += await self._look_at(tenant_id, rollout_id)
        return num_moved

    async def close(self) -> None:
        await self._samples.close()

    async def _look_at(self, tenant_id: str, rollout_id: str) -> bool:
        try:
            async with self._database.session() as session:
                await tenant_scope(session, tenant_id)
                has_moved = await self._move(session, tenant_id, rollout_id)
                await session.commit()
                return has_moved
        except UnavailableError:
            raise
        except QueueUnavailableError as error:
            log.warning("samples_unreadable", rollout_id=rollout_id, error=str(error))
        except Exception:  # whatever it is, it must not stop the rollouts behind it
            log.exception("rollout_failed", rollout_id=rollout_id)
        await self._postpone(tenant_id, rollout_id, TROUBLE_S)
        return False

    async def _move(self, session: AsyncSession, tenant_id: str, rollout_id: str) -> bool:
        rollouts = RolloutRepository(session, tenant_id)
        adapter = await self._lock_adapter(session, tenant_id, rollout_id)
        rollout = None if adapter is None else await rollouts.lock(rollout_id)
        if adapter is None or rollout is None or rollout.state != "running":
            return False  # deleted, or somebody was quicker
        samples = await self._samples.read(rollout.adapter_id, rollout.alias)
        decision = await asyncio.to_thread(decide, rollout, samples, self._now())
        service.postpone(rollout, self._now(), INTERVAL_S)
        if decision.next is Next.WAIT:
            return False
        try:
            async with session.begin_nested():
                await self._follow(session, adapter, rollout, decision)
        except ConflictError as error:  # a version of it may not be named any more
            await session.refresh(rollout)
            await self._pause(session, rollout, error)
        log.info("rollout_moved", rollout_id=rollout.id, state=rollout.state, step=rollout.step)
        return True

    async def _follow(
        self, session: AsyncSession, adapter: Adapter, rollout: Rollout, decision: Decision
    ) -> None:
        trail = self._trail_of(rollout.id)
        if decision.next is Next.ADVANCE:
            await service.advance(session, adapter, rollout, trail)
            return
        verdict = {"gates": [describe_finding(each) for each in decision.failed]}
        await service.fail(session, adapter, rollout, verdict, trail)

    async def _pause(self, session: AsyncSession, rollout: Rollout, error: ConflictError) -> None:
        """Nothing can be done by itself: somebody has to look."""
        before = RolloutView.of(rollout)
        service.pause(rollout, self._now(), {"code": error.code, "message": error.message})
        await session.flush()
        await self._trail_of(rollout.id).record(
            session,
            rollout.tenant_id,
            "rollout.paused",
            rollout.id,
            before=before,
            after=RolloutView.of(rollout),
        )

    async def _lock_adapter(
        self, session: AsyncSession, tenant_id: str, rollout_id: str
    ) -> Adapter | None:
        adapter_id = await RolloutRepository(session, tenant_id).adapter_of(rollout_id)
        if adapter_id is None:
            return None
        return await AdapterRepository(session, tenant_id).lock(adapter_id)

    async def _postpone(self, tenant_id: str, rollout_id: str, seconds: float) -> None:
        async with self._database.session() as session:
            await tenant_scope(session, tenant_id)
            rollout = await RolloutRepository(session, tenant_id).lock(rollout_id)
            if rollout is not None:
                service.postpone(rollout, self._now(), seconds)
            await session.commit()
