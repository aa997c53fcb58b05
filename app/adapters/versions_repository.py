"""The SQL of adapter versions.

Knows nothing of rules. Invariant: every query starts from the tenant, and the session is in its
scope.
"""

from __future__ import annotations

from sqlalchemy import Select, func, select
from sqlalchemy.ext.asyncio import AsyncSession

from app.adapters.states import DELETED, DELETING, GONE, NEEDS_BYTES, REJECTED
from app.db import lock_name, try_lock_name
from app.pages import PageQuery
from app.tables import AdapterJob, AdapterVersion


class VersionRepository:
    """One tenant's versions. The session is in this tenant's scope."""

    def __init__(self, session: AsyncSession, tenant_id: str) -> None:
        self._session = session
        self._tenant_id = tenant_id

    async def add(self, version: AdapterVersion) -> None:
        assert version.tenant_id == self._tenant_id
        self._session.add(version)
        await self._session.flush()

    async def get(self, version_id: str) -> AdapterVersion | None:
        """A version of any of the tenant's adapters, as it is now."""
        return await self._session.scalar(
            select(AdapterVersion)
            .where(AdapterVersion.tenant_id == self._tenant_id, AdapterVersion.id == version_id)
            .execution_options(populate_existing=True)
        )

    async def lock(self, version_id: str) -> AdapterVersion:
        """The row, locked and read afresh; one that is there, for its adapter is locked."""
        version = await self._session.scalar(
            select(AdapterVersion)
            .where(AdapterVersion.tenant_id == self._tenant_id, AdapterVersion.id == version_id)
            .with_for_update()
            .execution_options(populate_existing=True)
        )
        assert version is not None
        return version

    async def get_by_id(self, adapter_id: str, version_id: str) -> AdapterVersion | None:
        return await self._session.scalar(
            self._versions(adapter_id).where(AdapterVersion.id == version_id)
        )

    async def get_by_number(self, adapter_id: str, number: int) -> AdapterVersion | None:
        return await self._session.scalar(
            self._versions(adapter_id).where(AdapterVersion.number == number)
        )

    async def get_live_by_digest(self, adapter_id: str, digest: str) -> AdapterVersion | None:
        return await self._session.scalar(
            self._versions(adapter_id).where(
                AdapterVersion.digest == digest, AdapterVersion.state.not_in(GONE)
            )
        )

    async def list_page(self, adapter_id: str, page: PageQuery) -> list[AdapterVersion]:
        query = page.narrow(self._versions(adapter_id), AdapterVersion.id)
        return list(await self._session.scalars(query))

    async def list_deleting(self, locator: str) -> list[AdapterVersion]:
        """The versions with these bytes that are on their way out, the rows locked."""
        return list(
            await self._session.scalars(
                select(AdapterVersion)
                .where(
                    AdapterVersion.tenant_id == self._tenant_id,
                    AdapterVersion.locator == locator,
                    AdapterVersion.state == DELETING,
                )
                .order_by(AdapterVersion.id)
                .with_for_update()
            )
        )

    async def was_ever_active(self, adapter_id: str) -> bool:
        """Whether some version of this adapter has been active, now or before."""
        found = await self._session.scalar(
            select(AdapterVersion.id)
            .where(
                AdapterVersion.tenant_id == self._tenant_id,
                AdapterVersion.adapter_id == adapter_id,
                AdapterVersion.activated_at.is_not(None),
            )
            .limit(1)
        )
        return found is not None

    def _versions(self, adapter_id: str) -> Select[AdapterVersion]:
        return select(AdapterVersion).where(
            AdapterVersion.tenant_id == self._tenant_id, AdapterVersion.adapter_id == adapter_id
        )


async def lock_bytes(session: AsyncSession, locator: str) -> None:
    """Until the transaction ends, nobody else stores or removes the bytes at `locator`."""
    await lock_name(session, locator)


async def try_lock_bytes(session: AsyncSession, locator: str) -> bool:
    """The same, without waiting: False where somebody does."""
    return await try_lock_name(session, locator)


async def is_needed(session: AsyncSession, tenant_id: str, locator: str) -> bool:
    """Whether some version may be, or come to be, served from the bytes. In the tenant's scope."""
    num_versions = await session.scalar(
        select(func.count()).where(
            AdapterVersion.tenant_id == tenant_id,
            AdapterVersion.locator == locator,
            AdapterVersion.state.in_(NEEDS_BYTES),
        )
    )
    return bool(num_versions)


async def is_accounted_for(session: AsyncSession, tenant_id: str, locator: str) -> bool:
    """Whether some version has the bytes, or a worker is to remove them. In the tenant's scope.

    A rejected version has none: the worker that rejected it has them removed. A guard accounts for
    nothing: whether it is to remove them is what is asked here.
    """
    versions = select(AdapterVersion.id).where(
        AdapterVersion.tenant_id == tenant_id,
        AdapterVersion.locator == locator,
        AdapterVersion.state.not_in((REJECTED, DELETED)),
    )
    removals = select(AdapterJob.id).where(
        AdapterJob.tenant_id == tenant_id,
        AdapterJob.kind == "remove",
        AdapterJob.subject == locator,
        ~AdapterJob.is_guard,
    )
    found: bool | None = await session.scalar(select(versions.exists() | removals.exists()))
    return bool(found)
