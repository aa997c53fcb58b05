"""The SQL of imports.

Knows nothing of rules. Invariants: every query starts from the tenant, and the session is in its
scope; `next_due` alone is in the worker's; a job is a worker's while it is `running` with that
worker's attempt, and whoever changes it says which attempt it means.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from sqlalchemy import Select, or_, select, update
from sqlalchemy.ext.asyncio import AsyncSession

from app.imports.tables import Import
from app.pages import PageQuery

_OPEN = ("queued", "running")


class ImportRepository:
    """One tenant's imports."""

    def __init__(self, session: AsyncSession, tenant_id: str) -> None:
        self._session = session
        self._tenant_id = tenant_id

    async def add(self, job: Import) -> None:
        assert job.tenant_id == self._tenant_id
        self._session.add(job)
        await self._session.flush()
        await self._session.refresh(job)

    async def get(self, adapter_id: str, import_id: str) -> Import | None:
        return await self._session.scalar(
            self._imports()
            .where(Import.adapter_id == adapter_id, Import.id == import_id)
            .execution_options(populate_existing=True)
        )

    async def lock(self, import_id: str) -> Import | None:
        """The row, locked and read afresh: whoever changes an import comes in turn."""
        return await self._session.scalar(
            self._imports()
            .where(Import.id == import_id)
            .with_for_update()
            .execution_options(populate_existing=True)
        )

    async def list_page(self, adapter_id: str, page: PageQuery) -> list[Import]:
        query = page.narrow(self._imports().where(Import.adapter_id == adapter_id), Import.id)
        return list(await self._session.scalars(query))

    async def claim(self, import_id: str, now: datetime, lease_until: datetime) -> Import | None:
        """Make the job this worker's; None where it is another's, or has ended."""
        return await self._session.scalar(
            update(Import)
            .where(
                Import.tenant_id == self._tenant_id,
                Import.id == import_id,
                Import.state.in_(_OPEN),
                or_(Import.lease_until.is_(None), Import.lease_until <= now),
            )
            .values(
                state="running",
                attempts=Import.attempts + 1,
                lease_until=lease_until,
                started_at=now,
                bytes_done=0,
            )
            .returning(Import)
            .execution_options(populate_existing=True)
        )

    async def change(self, import_id: str, attempt: int, values: Mapping[str, Any]) -> bool:
        """Change a job that is this worker's; False where it is so no more."""
        found = await self._session.scalar(
            update(Import)
            .where(
                Import.tenant_id == self._tenant_id,
                Import.id == import_id,
                Import.state == "running",
                Import.attempts == attempt,
            )
            .values(values)
            .returning(Import.id)
            .execution_options(synchronize_session=False)
        )
        return found is not None

    def _imports(self) -> Select[Import]:
        return select(Import).where(Import.tenant_id == self._tenant_id)


async def next_due(session: AsyncSession, now: datetime) -> tuple[str, str] | None:
    """(id, tenant_id) of the job that has waited longest. In the worker's scope."""
    rows = await session.execute(
        select(Import.id, Import.tenant_id)
        .where(
            Import.ended_at.is_(None),
            or_(Import.lease_until.is_(None), Import.lease_until <= now),
        )
        .order_by(Import.created_at)
        .limit(1)
    )
    found = rows.first()
    return None if found is None else (found[0], found[1])
