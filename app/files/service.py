"""What may be done with files.

Knows nothing of HTTP's objects. Invariants: a removal of the bytes is planned and committed before
the first of them is written, so that whatever is interrupted leaves nothing for good; no connection
to the registry is held while a client sends; a file that a batch still reads is not taken from it.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import re
from collections.abc import AsyncIterable, Callable
from contextlib import aclosing
from datetime import datetime, timedelta

from sqlalchemy.ext.asyncio import AsyncSession
from starlette.requests import Request

from app.auth import Principal
from app.batches.repository import is_input_in_use
from app.context import AppContext
from app.db import tenant_scope
from app.errors import ApiError, BadRequestError, NotFoundError, PermissionDeniedError
from app.etags import check_etag
from app.files.form import FileForm
from app.files.receive import file_chunks, refuse_by_headers
from app.files.repository import FileRepository
from app.files.schemas import FileFields, FileView
from app.files.tables import StoredFile
from app.files.vault import FileVault, SealedBody
from app.idempotency.answered import AnsweredBefore
from app.idempotency.once import Asked, Idempotency
from app.ids import new_id
from app.settings import WorkerSettings

UPLOAD_LIMIT = timedelta(days=1)  # far longer than an upload may take
_FILE_ID = re.compile(r"fil_[0-9a-z]{26}")


def vault_of(context: AppContext) -> FileVault:
    """Raises BadRequestError where this server keeps no files."""
    if context.vault is None:
        raise BadRequestError(
            "This server keeps no files: its operator has not set where, or no key to seal them.",
            code="files_not_enabled",
        )
    return context.vault


async def upload_file(
    context: AppContext, principal: Principal, request: Request, once: Asked | None = None
) -> StoredFile:
    """Take the file of an upload.

    Raises ApiError, also 403 `quota_exceeded`, and as `Asked.enter` where it was taken before.
    """
    vault, settings, tenant_id = vault_of(context), context.settings, principal.tenant_id
    refuse_by_headers(request, settings.max_file_bytes)
    form = FileForm(request.headers.get("content-type"))
    file_id = new_id("fil")
    locator = locator_of(tenant_id, file_id)
    async with context.database.session() as session:
        await tenant_scope(session, tenant_id)
        files = FileRepository(session, tenant_id)
        room = settings.max_tenant_file_bytes
        if once is None:  # else it may be among what is there
            room -= await files.num_bytes()
        retention_days = await files.retention_days()
        await files.plan_removal(locator, context.now() + UPLOAD_LIMIT)
        await session.commit()
    chunks = file_chunks(request, form, settings.max_file_bytes)
    digest = hashlib.sha256()
    async with aclosing(chunks):
        received = chunks if once is None else _told(chunks, digest.update)
        body = await vault.put(locator, _within(received, room, settings.max_tenant_file_bytes))
    fields = FileFields.of(form.fields)
    now = context.now()
    asked_s = None if fields.expires_after is None else fields.expires_after.seconds
    file = new_file(
        tenant_id,
        file_id,
        body,
        filename=form.filename or "file",
        purpose=fields.purpose,
        now=now,
        lifetime=lifetime(settings, retention_days, asked_s),
    )
    await _write_down(context, vault, file, once, digest.digest(), form)
    return file


async def _write_down(
    context: AppContext,
    vault: FileVault,
    file: StoredFile,
    once: Asked | None,
    digest: bytes,
    form: FileForm,
) -> None:
    """The bytes are in the store; from now on there is a file, or nobody has them."""
    max_bytes, now = context.settings.max_tenant_file_bytes, file.created_at
    async with context.database.session() as session:
        await tenant_scope(session, file.tenant_id)
        files = FileRepository(session, file.tenant_id)
        try:
            kept = await _enter(session, once, digest, form)
        except (AnsweredBefore, ApiError):
            await files.plan_removal(file.locator, now)
            await session.commit()
            raise
        await files.lock()
        if await files.num_bytes() + file.num_bytes > max_bytes:
            await files.plan_removal(file.locator, now)  # another upload took the room meanwhile
            await session.commit()
            raise _quota_exceeded(max_bytes)
        if not await files.try_add(file):
            await vault.delete(file.locator)  # deleted meanwhile, and what was planned for it too
            raise NotFoundError()
        await kept.keep(FileView.of(file))
        await session.commit()


def new_file(
    tenant_id: str,
    file_id: str,
    body: SealedBody,
    *,
    filename: str,
    purpose: str,
    now: datetime,
    lifetime: timedelta,
) -> StoredFile:
    """The row of a file whose bytes are in the store."""
    return StoredFile(
        id=file_id,
        tenant_id=tenant_id,
        filename=filename,
        purpose=purpose,
        num_bytes=body.num_bytes,
        locator=body.locator,
        wrapped_key=body.wrapped_key,
        created_at=now,
        expires_at=now + lifetime,
    )


def lifetime(
    settings: WorkerSettings, retention_days: int | None, asked_s: int | None
) -> timedelta:
    """How long a file is kept: what was asked for, the tenant's policy and the server allow."""
    days = [settings.file_retention_days] + ([] if retention_days is None else [retention_days])
    longest = timedelta(days=min(days))
    return longest if asked_s is None else min(longest, timedelta(seconds=asked_s))


def locator_of(tenant_id: str, file_id: str) -> str:
    return f"{tenant_id}/{file_id}"


def body_of(file: StoredFile) -> SealedBody:
    return SealedBody(file.locator, file.wrapped_key, file.num_bytes)


async def find_file(
    session: AsyncSession, tenant_id: str, file_id: str, now: datetime, *, param: str = "file"
) -> StoredFile:
    """Raises NotFoundError, also for a file whose time is over. In the tenant's scope."""
    found = None
    if _FILE_ID.fullmatch(file_id):
        found = await FileRepository(session, tenant_id).get(file_id)
    if found is None or found.expires_at <= now:
        raise NotFoundError("No such file.", param=param)
    return found


async def delete_file(
    session: AsyncSession,
    tenant_id: str,
    file_id: str,
    now: datetime,
    *,
    if_match: str | None = None,
) -> StoredFile:
    """Raises NotFoundError, BadRequestError (`file_in_use`) while a batch reads it, and as
    `check_etag`."""
    found = await find_file(session, tenant_id, file_id, now)
    file = await FileRepository(session, tenant_id).lock_file(found.id)
    if file is None:  # deleted while we waited for the lock
        raise NotFoundError("No such file.", param="file")
    check_etag(FileView.of(file).etag, if_match)
    if await is_input_in_use(session, tenant_id, file.id):
        raise BadRequestError(
            "A batch that has not ended reads this file. Cancel it first.",
            code="file_in_use",
            param="file",
        )
    await FileRepository(session, tenant_id).remove(file, now)
    return file


async def _enter(
    session: AsyncSession, once: Asked | None, digest: bytes, form: FileForm
) -> Idempotency:
    """Raises as `Asked.enter`: what was sent before is the same where all of the form is."""
    if once is None:
        return Idempotency()
    said = json.dumps([form.filename, sorted(form.fields.items())])
    return await once.enter(session, digest, said.encode())


async def _told(
    chunks: AsyncIterable[bytes], update: Callable[[bytes], None]
) -> AsyncIterable[bytes]:
    """The same chunks; each is handed to `update` first, in a thread."""
    async for chunk in chunks:
        await asyncio.to_thread(update, chunk)
        yield chunk


async def _within(chunks: AsyncIterable[bytes], room: int, max_bytes: int) -> AsyncIterable[bytes]:
    num_bytes = 0
    async for chunk in chunks:
        num_bytes += len(chunk)
        if num_bytes > room:
            raise _quota_exceeded(max_bytes)
        yield chunk


def _quota_exceeded(max_bytes: int) -> PermissionDeniedError:
    return PermissionDeniedError(
        f"Your organization's files may hold {max_bytes} bytes together. Delete some.",
        code="quota_exceeded",
    )
