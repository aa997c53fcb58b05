"""A worker's work on uploads: those that nobody completed expire, and parts are removed.

Knows nothing of the process around it. Invariants: an upload is expired before its parts go, and is
noted as clean after; a registry or store that is away only postpones.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import datetime, timedelta

import structlog

from app.db import Database, tenant_scope, worker_scope
from app.errors import UnavailableError
from app.repeating import repeat
from app.uploads.repository import UploadRepository, list_unclean
from lora.store import StoreUnavailableError
from lora.store_parts import PartStore

log = structlog.get_logger()

INTERVAL_S = 5.0
BATCH = 50
# A part that was on its way when its upload ended is in the store before that is noticed.
GRACE = timedelta(minutes=1)


class UploadJobs:
    def __init__(self, database: Database, parts: PartStore, now: Callable[[], datetime]) -> None:
        self._database = database
        self._parts = parts
        self._now = now

    async def run(self, stopping: asyncio.Event) -> None:
        away = (UnavailableError, StoreUnavailableError)
        await repeat(self.run_once, stopping, INTERVAL_S, postponed="uploads_postponed", on=away)

    async def run_once(self) -> int:
        """Expire and clean what is due; how many uploads."""
        now = self._now()
        async with self._database.session() as session:
            await worker_scope(session)
            found = await list_unclean(session, now, now - GRACE, BATCH)
        for upload_id, tenant_id in found:
            await self._clean(tenant_id, upload_id)
        return len(found)

    async def _clean(self, tenant_id: str, upload_id: str) -> None:
        async with self._database.session() as session:
            await tenant_scope(session, tenant_id)
            upload = await UploadRepository(session, tenant_id).lock(upload_id)
            if upload is None or upload.cleaned_at is not None:
                return
            if upload.ended_at is None:
                upload.state, upload.ended_at = "expired", self._now()
                await session.commit()
                log.info("upload_expired", tenant_id=tenant_id, upload_id=upload_id)
        await asyncio.to_thread(self._parts.delete_all, upload_id)
        async with self._database.session() as session:
            await tenant_scope(session, tenant_id)
            uploads = UploadRepository(session, tenant_id)
            upload = await uploads.lock(upload_id)
            if upload is not None:
                upload.cleaned_at = self._now()
                await session.flush()
                await uploads.remove_orphan(upload_id)
            await session.commit()
