"""What tenants may do with batches.

Knows nothing of HTTP or of how lines are run. Invariant: a batch is taken in with the key that
asked for it, and each of its lines runs as that key would: what it may not do then, no line does.
"""

from __future__ import annotations

import re
from datetime import datetime, timedelta

from sqlalchemy.ext.asyncio import AsyncSession

from app.auth import Principal
from app.batches.repository import BatchRepository
from app.batches.schemas import BatchCreate, BatchView
from app.batches.tables import Batch
from app.db import tenant_scope
from app.errors import BadRequestError, NotFoundError, RateLimitedError
from app.etags import check_etag
from app.files.service import find_file
from app.files.vault import FileVault
from app.ids import new_id

WINDOW = timedelta(hours=24)
MAX_UNENDED = 100  # of a tenant
BUSY_RETRY_S = 60.0
_BATCH_ID = re.compile(r"bat_[0-9a-z]{26}")
_CANCELLABLE = ("validating", "in_progress")


async def create_batch(
    session: AsyncSession,
    vault: FileVault,
    principal: Principal,
    body: BatchCreate,
    now: datetime,
) -> Batch:
    """Raises NotFoundError for the file, BadRequestError for its purpose, RateLimitedError."""
    tenant_id = principal.tenant_id
    await tenant_scope(session, tenant_id)
    file = await find_file(session, tenant_id, body.input_file_id, now, param="input_file_id")
    if file.purpose != "batch":
        raise BadRequestError(
            "The input of a batch is a file of purpose 'batch'.", param="input_file_id"
        )
    batches = BatchRepository(session, tenant_id)
    if await batches.count_unended() >= MAX_UNENDED:
        raise RateLimitedError(
            f"{MAX_UNENDED} of your batches have not ended yet.",
            code="too_many_batches",
            type="requests",
            retry_after_s=BUSY_RETRY_S,
        )
    batch_id = new_id("bat")
    _, wrapped_key = vault.keys.new_data_key(batch_id)
    expiry = body.output_expires_after
    batch = Batch(
        id=batch_id,
        tenant_id=tenant_id,
        key_id=principal.key_id,
        endpoint=body.endpoint,
        input_file_id=file.id,
        output_expires_after_s=None if expiry is None else expiry.seconds,
        labels=body.metadata,
        wrapped_key=wrapped_key,
        created_at=now,
        expires_at=now + WINDOW,
    )
    await batches.add(batch)
    return batch


async def find_batch(session: AsyncSession, tenant_id: str, batch_id: str) -> Batch:
    """Raises NotFoundError. In the tenant's scope."""
    found = None
    if _BATCH_ID.fullmatch(batch_id):
        found = await BatchRepository(session, tenant_id).get(batch_id)
    if found is None:
        raise NotFoundError("No such batch.", param="batch")
    return found


async def cancel_batch(
    session: AsyncSession,
    tenant_id: str,
    batch_id: str,
    now: datetime,
    *,
    if_match: str | None = None,
) -> Batch:
    """No more lines are begun; those that run come to their end. A second call changes nothing.

    Raises NotFoundError, BadRequestError (`batch_not_cancellable`), and as `check_etag`.
    """
    found = await find_batch(session, tenant_id, batch_id)
    batches = BatchRepository(session, tenant_id)
    batch = await batches.lock(found.id)
    if batch is None:  # deleted while we waited for the lock
        raise NotFoundError("No such batch.", param="batch")
    check_etag(BatchView.of(batch).etag, if_match)
    if batch.status in _CANCELLABLE:
        batch.status, batch.cancelling_at = "cancelling", now
        await session.flush()
        await batches.wake(batch.id)
    elif batch.status not in ("cancelling", "cancelled"):
        raise BadRequestError(
            f"A batch that is {batch.status} cannot be cancelled.",
            code="batch_not_cancellable",
            param="batch",
        )
    return batch
