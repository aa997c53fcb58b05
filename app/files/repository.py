"""The SQL of files and of the removals that are planned for them.

Knows nothing of bytes. Invariants: `FileRepository` works in its tenant's scope, and names the
tenant in every query; every file has a removal, added before its bytes were written.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta

from sqlalchemy import delete, func, select, update
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.exc import IntegrityError
from sqlalchemy.ext.asyncio import AsyncSession

from app.db import lock_name, worker_scope
from app.files.tables import FileRemoval, StoredFile
from app.pages import PageQuery
from app.tables import Tenant


class FileRepository:
    """One tenant's files. The session is in this tenant's scope."""

    def __init__(self, session: AsyncSession, tenant_id: str) -> None:
        self._session = session
        self._tenant_id = tenant_id

    async def lock(self) -> None:
        """Until the transaction ends, nobody else counts what this tenant's files hold."""
        await lock_name(self._session, f"files:{self._tenant_id}")

    async def try_add(self, file: StoredFile) -> bool:
        """The file is there from now on, and its removal is due when it expires.

        False where the tenant was deleted meanwhile: then nothing more can be done here.
        """
        assert file.tenant_id == self._tenant_id
        self._session.add(file)
        try:
            await self._session.flush()
        except IntegrityError:
            return False
        await self.plan_removal(file.locator, file.expires_at)
        return True

    async def plan_removal(self, locator: str, not_before: datetime) -> None:
        statement = insert(FileRemoval).values(
            locator=locator, tenant_id=self._tenant_id, not_before=not_before
        )
        await self._session.execute(
            statement.on_conflict_do_update(
                index_elements=["locator"], set_={"not_before": statement.excluded.not_before}
            )
        )

    async def get(self, file_id: str) -> StoredFile | None:
        return await self._session.scalar(
            select(StoredFile).where(
                StoredFile.tenant_id == self._tenant_id, StoredFile.id == file_id
            )
        )

    async def lock_file(self, file_id: str) -> StoredFile | None:
        """The row, locked and read afresh."""
        return await self._session.scalar(
            select(StoredFile)
            .where(StoredFile.tenant_id == self._tenant_id, StoredFile.id == file_id)
            .with_for_update()
            .execution_options(populate_existing=True)
        )

    async def list_page(self, page: PageQuery, *, purpose: str | None) -> list[StoredFile]:
        query = select(StoredFile).where(StoredFile.tenant_id == self._tenant_id)
        if purpose is not None:
            query = query.where(StoredFile.purpose == purpose)
        return list(await self._session.scalars(page.narrow(query, StoredFile.id)))

    async def remove(self, file: StoredFile, now: datetime) -> None:
        """The file is gone; a worker removes its bytes."""
        await self._session.execute(
            delete(StoredFile).where(
                StoredFile.tenant_id == self._tenant_id, StoredFile.id == file.id
            )
        )
        await self.plan_removal(file.locator, now)

    async def num_bytes(self) -> int:
        """Of all files together."""
        query = select(func.coalesce(func.sum(StoredFile.num_bytes), 0))
        found = await self._session.scalar(query.where(StoredFile.tenant_id == self._tenant_id))
        return int(found or 0)

    async def retention_days(self) -> int | None:
        """For how long the tenant's data policy lets anything be kept; None: it says nothing."""
        return await self._session.scalar(
            select(Tenant.prompt_retention_days).where(Tenant.id == self._tenant_id)
        )

    async def cut_retention(self, days: int) -> None:
        """No file is kept for longer than this from now on, those that are there included."""
        expires_at = func.least(StoredFile.expires_at, StoredFile.created_at + timedelta(days=days))
        changed = (
            update(StoredFile)
            .where(StoredFile.tenant_id == self._tenant_id, StoredFile.expires_at > expires_at)
            .values(expires_at=expires_at)
            .returning(StoredFile.locator, StoredFile.expires_at)
        )
        for locator, at in (await self._session.execute(changed)).all():
            await self.plan_removal(locator, at)

    async def remove_all(self, now: datetime) -> None:
        """The tenant goes: so do all its bytes, those of unfinished uploads included."""
        await self._session.execute(
            update(FileRemoval)
            .where(FileRemoval.tenant_id == self._tenant_id)
            .values(not_before=now)
        )

    async def list_wrapped_otherwise(
        self, key_id: bytes, *, after: str, limit: int
    ) -> Sequence[StoredFile]:
        """Files whose key was wrapped by another envelope key than the one of this id.

        By id, those that follow `after`.
        """
        return list(
            await self._session.scalars(
                select(StoredFile)
                .where(
                    StoredFile.tenant_id == self._tenant_id,
                    StoredFile.id > after,
                    func.substr(StoredFile.wrapped_key, 1, len(key_id)) != key_id,
                )
                .order_by(StoredFile.id)
                .limit(limit)
            )
        )

    async def find_by_locator(self, locator: str) -> StoredFile | None:
        return await self._session.scalar(
            select(StoredFile).where(
                StoredFile.tenant_id == self._tenant_id, StoredFile.locator == locator
            )
        )

    async def forget(self, locator: str) -> None:
        """The bytes are gone: so are the row, if it is there yet, and the removal."""
        for table in (StoredFile, FileRemoval):
            await self._session.execute(
                delete(table).where(table.tenant_id == self._tenant_id, table.locator == locator)
            )


async def claim_removal(session: AsyncSession, now: datetime) -> FileRemoval | None:
    """The next removal that is due, locked until the transaction ends. Sets the worker's scope."""
    await worker_scope(session)
    return await session.scalar(
        select(FileRemoval)
        .where(FileRemoval.not_before <= now)
        .order_by(FileRemoval.not_before)
        .limit(1)
        .with_for_update(skip_locked=True)
    )


async def tenants_with_files(session: AsyncSession) -> list[str]:
    """Whose files there are, or will be. Sets the worker's scope."""
    await worker_scope(session)
    return list(await session.scalars(select(FileRemoval.tenant_id).distinct()))
