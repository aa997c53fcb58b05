"""Turns a complete upload into a version, once, however often and by how many it is asked to.

Knows nothing of HTTP. Invariants: one process at a time puts an upload together, until its claim
lapses; whoever's claim lapsed says nothing of the upload once another has claimed it; a second call
is given what the first one came to; no database connection is held while files are put together
and checked.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

import structlog
from sqlalchemy.ext.asyncio import AsyncSession

from app.adapters.intake import accept_folder
from app.adapters.staging import staging
from app.adapters.storage_errors import storage_errors
from app.adapters.submission import Submission, Terms
from app.adapters.versions_repository import VersionRepository
from app.audit.trail import AuditTrail
from app.context import AppContext
from app.db import tenant_scope
from app.errors import NO_RETRY, ApiError, ConflictError, NotFoundError
from app.tables import AdapterVersion
from app.uploads.assembling import (
    MissingPartsError,
    Received,
    WrongFilesError,
    assemble,
    missing_parts,
)
from app.uploads.layout import DeclaredFile, file_parts
from app.uploads.repository import UploadRepository
from app.uploads.service import closed, find_upload, lock_upload
from app.uploads.tables import Upload

log = structlog.get_logger()

CLAIM = timedelta(minutes=5)
# Statuses that say something of the files themselves, which no second try changes.
REFUSALS = frozenset({400, 413, 415, 422})


@dataclass(frozen=True, slots=True)
class Claimed:
    """An upload that is this call's to put together, for as long as nobody else claims it.

    `until`: it is told from a later claim by when it lapses.
    """

    upload_id: str
    adapter_id: str
    files: list[DeclaredFile]
    received: Received
    until: datetime


async def complete_upload(
    context: AppContext,
    tenant_id: str,
    adapter_reference: str,
    upload_id: str,
    trail: AuditTrail,
    terms: Terms,
    *,
    activates: bool = True,
    if_match: str | None = None,
) -> tuple[AdapterVersion, bool]:
    """The version, and whether this call made it. Raises as `check_etag` before it is claimed.

    Raises ConflictError `upload_incomplete` (with what is missing, by number),
    `upload_already_completed` while another call is at it; 422 `digest_mismatch`; the refusal of
    the files, again for each call.
    """
    async with context.database.session() as session:
        await tenant_scope(session, tenant_id)
        upload = await find_upload(session, tenant_id, adapter_reference, upload_id)
        upload = await lock_upload(session, tenant_id, upload.id, if_match=if_match)
        if upload.state == "completed":
            return await _version_of(session, tenant_id, upload), False
        claimed = await _claim(session, tenant_id, upload, context.now())
        await session.commit()
    submission = Submission.of("parts", terms, trail, activates=activates)
    try:
        version = await _accept(context, tenant_id, claimed, trail, submission)
    except MissingPartsError as error:
        await _forget_parts(context, tenant_id, claimed, error.missing)
        raise incomplete(error.missing) from error
    except WrongFilesError as error:
        await _end(context, tenant_id, claimed, {"state": "uploading"})
        raise _wrong_files(claimed, error) from error
    except ApiError as error:
        is_refusal = error.status in REFUSALS
        changes = _rejected(error, context.now()) if is_refusal else {"state": "uploading"}
        await _end(context, tenant_id, claimed, changes)
        raise
    except BaseException:  # whatever it is, the next call may try at once
        await asyncio.shield(_end(context, tenant_id, claimed, {"state": "uploading"}))
        raise
    completed = {"state": "completed", "version_id": version.id, "ended_at": context.now()}
    await _end(context, tenant_id, claimed, completed)
    return version, True


def incomplete(missing: Mapping[str, list[int]]) -> ConflictError:
    return ConflictError(
        "Not all of the upload was received.",
        code="upload_incomplete",
        param="upload",
        details={"missing": [{"path": path, "parts": parts} for path, parts in missing.items()]},
    )


async def _version_of(session: AsyncSession, tenant_id: str, upload: Upload) -> AdapterVersion:
    assert upload.version_id is not None
    version = await VersionRepository(session, tenant_id).get(upload.version_id)
    if version is None:
        raise NotFoundError("The upload's version was deleted.", param="upload")
    return version


async def _claim(session: AsyncSession, tenant_id: str, upload: Upload, now: datetime) -> Claimed:
    """Raises why the upload is not to be completed now."""
    if upload.state == "rejected" and upload.refusal is not None:
        raise ApiError(**upload.refusal, headers=NO_RETRY)
    is_abandoned = (
        upload.state == "completing"
        and upload.claimed_until is not None
        and upload.claimed_until <= now
    )
    if not is_abandoned and (upload.state != "uploading" or upload.expires_at <= now):
        raise closed(upload, now)
    rows = (await UploadRepository(session, tenant_id).parts_of([upload.id]))[upload.id]
    received = {(row.path, row.number): row.sha256 for row in rows}
    files = file_parts(upload)
    if missing := missing_parts(files, received):
        raise incomplete(missing)
    until = now + CLAIM
    upload.state, upload.claimed_until = "completing", until
    return Claimed(upload.id, upload.adapter_id, files, received, until)


async def _accept(
    context: AppContext,
    tenant_id: str,
    claimed: Claimed,
    trail: AuditTrail,
    submission: Submission,
) -> AdapterVersion:
    async with staging(context.settings.data_dir) as folder:
        with storage_errors():
            files = await asyncio.to_thread(
                assemble,
                claimed.files,
                claimed.received,
                claimed.upload_id,
                context.parts,
                context.store,
                folder,
            )
        return await accept_folder(
            context, tenant_id, claimed.adapter_id, folder, files, submission, trail
        )


async def _end(
    context: AppContext, tenant_id: str, claimed: Claimed, changes: Mapping[str, Any]
) -> None:
    """Give the claim back. Where the upload went away meanwhile there is nothing to be changed."""
    async with context.database.session() as session:
        await tenant_scope(session, tenant_id)
        upload = await UploadRepository(session, tenant_id).lock(claimed.upload_id)
        if upload is not None and _is_held(upload, claimed):
            for name, value in changes.items():
                setattr(upload, name, value)
            upload.claimed_until = None
            await session.commit()


def _is_held(upload: Upload, claimed: Claimed) -> bool:
    """Whether nobody has claimed it since."""
    return upload.state == "completing" and upload.claimed_until == claimed.until


async def _forget_parts(
    context: AppContext, tenant_id: str, claimed: Claimed, missing: Mapping[str, list[int]]
) -> None:
    """What the store lost is to be sent again: parts, or a file that another version had."""
    async with context.database.session() as session:
        await tenant_scope(session, tenant_id)
        uploads = UploadRepository(session, tenant_id)
        upload = await uploads.lock(claimed.upload_id)
        if upload is None or not _is_held(upload, claimed):
            return
        for path, numbers in missing.items():
            await uploads.remove_parts(upload.id, path, numbers)
        lost = {path for path, numbers in missing.items() if not numbers}
        upload.files = [
            {**file, "locator": None} if file["path"] in lost else file for file in upload.files
        ]
        upload.state, upload.claimed_until = "uploading", None
        await session.commit()


def _rejected(error: ApiError, now: datetime) -> dict[str, Any]:
    refusal = {
        "status": error.status,
        "code": error.code,
        "type": error.type,
        "message": error.message,
        "param": error.param,
        "details": error.details,
    }
    return {"state": "rejected", "refusal": refusal, "ended_at": now}


def _wrong_files(claimed: Claimed, error: WrongFilesError) -> ApiError:
    declared = {file.path: file for file in claimed.files}
    wrong = [
        {"path": path, "expected": declared[path].sha256, "actual": found.sha256}
        for path, found in error.files.items()
    ]
    first = wrong[0]["path"]
    return ApiError(
        422,
        "digest_mismatch",
        "invalid_request_error",
        f"'{first}' is complete, and is not the file that was declared. Send its parts again.",
        param=first,
        headers=NO_RETRY,
        details={"files": wrong},
    )
