"""Puts an adapter's bytes into the store so that none stay there which no version has.

Knows nothing of what the bytes are, nor of the version's row, which its caller writes. A *guard* is
a worker's job to remove them. Invariants: it is on record before the first byte is put, and goes in
the transaction that writes the version down, so that a process which is killed at any moment leaves
a version, or a guard, or no byte; from before they are put until that transaction ends the bytes
are locked (`lock_bytes`), so that whoever removes them sees what came of it; a guard never removes
what a version needs, and ends no retention; what another upload of the same bytes comes to is that
one's affair: it has a guard of its own.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path

import structlog
from sqlalchemy.ext.asyncio import AsyncSession

from app.adapters.jobs_repository import add_guard, remove_guard
from app.adapters.storage_errors import storage_errors
from app.adapters.versions_repository import is_accounted_for, lock_bytes
from app.db import Database, tenant_scope
from app.errors import ApiError
from lora.store import AdapterStore, locator_of

log = structlog.get_logger()

MAX_PUT_S = 3600.0  # nobody takes so long to put one adapter down
# How long whoever is cancelled waits for the thread that puts, which cannot be stopped.
MAX_PARTING_S = 60.0


@asynccontextmanager
async def kept_bytes(
    database: Database, store: AdapterStore, tenant_id: str, digest: str, files: Mapping[str, Path]
) -> AsyncIterator[AsyncSession]:
    """A session in the tenant's scope in which `files` are in the store, to write their version
    down; it is committed at the end.

    An ApiError from within undoes what was written, and the bytes go at once where nothing has
    them. After any other failure, and where nobody is left to say how it went, they go `MAX_PUT_S`
    after the beginning.
    Raises UnavailableError where they cannot be kept.
    """
    locator = locator_of(tenant_id, digest)
    async with database.session() as session:
        await tenant_scope(session, tenant_id)
        guard_id = await add_guard(session, tenant_id, locator, delay_s=MAX_PUT_S)
        await session.commit()
        await tenant_scope(session, tenant_id)
        await lock_bytes(session, locator)
        with storage_errors():
            await _put(store, tenant_id, digest, files)
        try:
            async with session.begin_nested():
                yield session
        except ApiError:
            if not await is_accounted_for(session, tenant_id, locator):
                with storage_errors():
                    await asyncio.to_thread(store.delete, locator)
            await remove_guard(session, tenant_id, guard_id)
            await session.commit()
            raise
        await remove_guard(session, tenant_id, guard_id)
        await session.commit()


async def _put(store: AdapterStore, tenant_id: str, digest: str, files: Mapping[str, Path]) -> None:
    putting = asyncio.create_task(asyncio.to_thread(store.put, tenant_id, digest, files))
    try:
        await asyncio.shield(putting)
    except asyncio.CancelledError:
        # NOTE: the thread goes on. The bytes stay locked until it has come to its end, so that
        # nobody removes them before they are there.
        done, _ = await asyncio.wait((putting,), timeout=MAX_PARTING_S)
        failed = any(each.cancelled() or each.exception() is not None for each in done)
        log.info("put_abandoned", digest=digest, has_ended=bool(done), failed=failed)
        raise
