"""The SQL of rollouts.

Knows nothing of rules. Invariants: every query but `list_due` starts from the tenant, and the
session is in its scope; a rollout is worked on with its row's lock, so that two workers never move
it at once.
"""

from __future__ import annotations

from datetime import datetime

from sqlalchemy import Select, select
from sqlalchemy.ext.asyncio import AsyncSession

from app.db import worker_scope
from app.pages import PageQuery
from app.rollouts.tables import Rollout

OPEN = ("running", "paused")


class RolloutRepository:
    """One tenant's rollouts."""

    def __init__(self, session: AsyncSession, tenant_id: str) -> None:
        self._session = session
        self._tenant_id = tenant_id

    async def add(self, rollout: Rollout) -> None:
        assert rollout.tenant_id == self._tenant_id
        self._session.add(rollout)
        await self._session.flush()
        await self._session.refresh(rollout)

    async def get(self, adapter_id: str, rollout_id: str) -> Rollout | None:
        return await self._session.scalar(
            self._rollouts().where(Rollout.adapter_id == adapter_id, Rollout.id == rollout_id)
        )

    async def lock(self, rollout_id: str) -> Rollout | None:
        """The row, locked and read afresh; the adapter is locked before it."""
        return await self._session.scalar(
            self._rollouts()
            .where(Rollout.id == rollout_id)
            .with_for_update()
            .execution_options(populate_existing=True)
        )

    async def adapter_of(self, rollout_id: str) -> str | None:
        return await self._session.scalar(
            self._rollouts().where(Rollout.id == rollout_id).with_only_columns(Rollout.adapter_id)
        )

    async def list_page(self, adapter_id: str, page: PageQuery) -> list[Rollout]:
        query = page.narrow(self._rollouts().where(Rollout.adapter_id == adapter_id), Rollout.id)
        return list(await self._session.scalars(query))

    async def list_open_on(self, version_id: str) -> list[str]:
        """The rollouts from or to a version that are not over."""
        query = (
            self._rollouts()
            .where(
                Rollout.state.in_(OPEN),
                (Rollout.from_version_id == version_id) | (Rollout.to_version_id == version_id),
            )
            .with_only_columns(Rollout.id)
        )
        return list(await self._session.scalars(query))

    def _rollouts(self) -> Select[Rollout]:
        return select(Rollout).where(Rollout.tenant_id == self._tenant_id)


async def find_open_rollout(
    session: AsyncSession, tenant_id: str, adapter_id: str, alias: str
) -> str | None:
    """The rollout that moves this alias at the moment."""
    return await session.scalar(
        select(Rollout.id).where(
            Rollout.tenant_id == tenant_id,
            Rollout.adapter_id == adapter_id,
            Rollout.alias == alias,
            Rollout.state.in_(OPEN),
        )
    )


async def list_due(session: AsyncSession, now: datetime, limit: int) -> list[tuple[str, str]]:
    """(tenant, rollout) of those that run and are due, the longest due first.

    Sets the worker's scope, in which nothing of them can be changed.
    """
    await worker_scope(session)
    rows = await session.execute(
        select(Rollout.tenant_id, Rollout.id)
        .where(Rollout.state == "running", Rollout.due_at <= now)
        .order_by(Rollout.due_at)
        .limit(limit)
    )
    return [(tenant_id, rollout_id) for tenant_id, rollout_id in rows]
