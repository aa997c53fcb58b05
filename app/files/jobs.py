"""A worker's work on files: remove what is to go, and wrap keys anew under the first envelope key.

Knows nothing of requests. Invariants: the row goes with the bytes; a file that a batch still reads
stays until that has ended; a removal that fails is tried again, and holds up no other.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta

import structlog
from sqlalchemy.ext.asyncio import AsyncSession

from app.batches.repository import is_input_in_use
from app.context import Clock
from app.db import Database, tenant_scope
from app.encryption import SealBrokenError
from app.files.repository import FileRepository, claim_removal, tenants_with_files
from app.files.tables import FileRemoval
from app.files.vault import FileVault

log = structlog.get_logger()

POSTPONED_BY = timedelta(minutes=5)
REWRAP_PAGE = 1000


@dataclass(frozen=True, slots=True)
class FileJobs:
    """`rewrap_page`: files whose keys are wrapped anew in one transaction."""

    database: Database
    vault: FileVault
    now: Clock
    rewrap_page: int = REWRAP_PAGE

    async def remove_next(self) -> bool:
        """Remove one file's bytes; False where none are due. Raises UnavailableError."""
        async with self.database.session() as session:
            removal = await claim_removal(session, self.now())
            if removal is None:
                return False
            await self._remove(session, removal)
            await session.commit()
        return True

    async def rewrap(self) -> int:
        """Wrap every file's key by the first envelope key; how many were not. Raises
        UnavailableError.

        What no known envelope key opens is left as it is, and told of.
        """
        num_wrapped = 0
        async with self.database.session() as session:
            tenant_ids = await tenants_with_files(session)
        for tenant_id in tenant_ids:
            num_wrapped += await self._rewrap_tenant(tenant_id)
        if num_wrapped:
            log.info("file_keys_rewrapped", num_files=num_wrapped)
        return num_wrapped

    async def _remove(self, session: AsyncSession, removal: FileRemoval) -> None:
        tenant_id, locator = removal.tenant_id, removal.locator
        await tenant_scope(session, tenant_id)
        files = FileRepository(session, tenant_id)
        file = await files.find_by_locator(locator)
        if file is not None and await is_input_in_use(session, tenant_id, file.id):
            await files.plan_removal(locator, self.now() + POSTPONED_BY)
            return
        try:
            await self.vault.delete(locator)
        except OSError as error:
            log.warning("file_not_removed", locator=locator, error=type(error).__name__)
            await files.plan_removal(locator, self.now() + POSTPONED_BY)
            return
        await files.forget(locator)
        log.info("file_removed", tenant_id=tenant_id, locator=locator)

    async def _rewrap_tenant(self, tenant_id: str) -> int:
        """A page at a time, by id: what does not open is passed by, and comes before nothing."""
        num_wrapped, after = 0, ""
        keys = self.vault.keys
        while True:
            async with self.database.session() as session:
                await tenant_scope(session, tenant_id)
                page = await FileRepository(session, tenant_id).list_wrapped_otherwise(
                    keys.current_id, after=after, limit=self.rewrap_page
                )
                for file in page:
                    try:
                        file.wrapped_key = keys.rewrap(file.locator, file.wrapped_key)
                        num_wrapped += 1
                    except SealBrokenError as error:
                        log.error("file_key_not_opened", locator=file.locator, error=str(error))
                last_id = page[-1].id if page else ""
                await session.commit()
            if len(page) < self.rewrap_page:
                return num_wrapped
            after = last_id
