"""The SQL of what a tenant has of what it may have.

Knows nothing of limits. Invariant: every query starts from the tenant, and the session is in its
scope.
"""

from __future__ import annotations

from datetime import date, datetime

from sqlalchemy import func, select
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.ext.asyncio import AsyncSession

from app.db import lock_name
from app.tables import Adapter, AdapterVersion, Tenant
from app.uploads.tables import Upload, UploadCount

_OPEN = ("uploading", "completing")


class QuotaRepository:
    """One tenant's."""

    def __init__(self, session: AsyncSession, tenant_id: str) -> None:
        self._session = session
        self._tenant_id = tenant_id

    async def lock(self) -> None:
        """Until the transaction ends, nobody else counts what this tenant has."""
        await lock_name(self._session, f"quotas:{self._tenant_id}")

    async def tenant(self) -> Tenant | None:
        return await self._session.scalar(select(Tenant).where(Tenant.id == self._tenant_id))

    async def count_adapters(self) -> int:
        count = select(func.count()).select_from(Adapter)
        return await self._session.scalar(count.where(Adapter.tenant_id == self._tenant_id)) or 0

    async def stored_bytes(self) -> int:
        """Of versions whose bytes are kept; two versions with the same bytes have them once."""
        kept = (
            select(AdapterVersion.locator, func.max(AdapterVersion.num_bytes).label("num_bytes"))
            .where(
                AdapterVersion.tenant_id == self._tenant_id,
                AdapterVersion.state.not_in(("rejected", "deleted")),
            )
            .group_by(AdapterVersion.locator)
            .subquery()
        )
        return int(await self._session.scalar(select(func.sum(kept.c.num_bytes))) or 0)

    async def open_uploads(self, now: datetime) -> tuple[int, int]:
        """How many uploads in parts are on their way, and how many bytes they were said to have."""
        rows = await self._session.scalars(
            select(Upload.files).where(
                Upload.tenant_id == self._tenant_id,
                Upload.state.in_(_OPEN),
                Upload.expires_at > now,
            )
        )
        files = list(rows)
        return len(files), sum(file["bytes"] for each in files for file in each)

    async def count_upload(self, day: date) -> int:
        """One more upload on this day; how many that makes."""
        statement = insert(UploadCount).values(tenant_id=self._tenant_id, day=day, num_uploads=1)
        found: int | None = await self._session.scalar(
            statement.on_conflict_do_update(
                index_elements=[UploadCount.tenant_id, UploadCount.day],
                set_={"num_uploads": UploadCount.num_uploads + 1},
            ).returning(UploadCount.num_uploads)
        )
        assert found is not None
        return found
