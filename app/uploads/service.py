"""What may be done with an upload in parts, but for sending a part and completing it.

Knows nothing of HTTP. The session is in the tenant's scope. Invariants: what another tenant owns is
not found; nothing that could not be accepted is begun; an upload that has ended takes nothing more.
"""

from __future__ import annotations

import re
from datetime import datetime, timedelta

from sqlalchemy.ext.asyncio import AsyncSession

from app.adapters.receive import max_bytes_by_name
from app.adapters.service import find_adapter
from app.adapters.unexpected_files import refuse_unexpected
from app.audit.trail import AuditTrail
from app.errors import ApiError, BadRequestError, ConflictError, NotFoundError, UnprocessableError
from app.etags import check_etag
from app.ids import new_id
from app.receiving import too_large
from app.settings import Settings
from app.uploads.quotas import Quotas
from app.uploads.repository import UploadRepository
from app.uploads.schemas import UploadCreate, UploadView
from app.uploads.tables import Upload
from lora.store import CONFIG_FILE, WEIGHTS_FILE

LIFETIME = timedelta(hours=24)
_UPLOAD_ID = re.compile(r"upl_[0-9a-z]{26}")
_REQUIRED = {CONFIG_FILE: "config_missing", WEIGHTS_FILE: "adapter_empty"}


async def create_upload(
    session: AsyncSession,
    tenant_id: str,
    adapter_reference: str,
    body: UploadCreate,
    settings: Settings,
    trail: AuditTrail,
) -> Upload:
    """Raises the refusal that these files would meet anyway, or `quota_exceeded`."""
    adapter = await find_adapter(session, tenant_id, adapter_reference)
    check_declared(body, settings.max_upload_bytes)
    num_bytes = sum(file.bytes for file in body.files)
    await Quotas(session, tenant_id).take_upload(trail.at, num_bytes, in_parts=True)
    uploads = UploadRepository(session, tenant_id)
    files = [
        {
            "path": file.path,
            "bytes": file.bytes,
            "sha256": file.sha256,
            "locator": await uploads.find_owned_file(file.path, file.bytes, file.sha256),
        }
        for file in body.files
    ]
    upload = Upload(
        id=new_id("upl"),
        tenant_id=tenant_id,
        adapter_id=adapter.id,
        files=files,
        part_bytes=settings.upload_part_bytes,
        expires_at=trail.at + LIFETIME,
    )
    await uploads.add(upload)
    await trail.record(session, tenant_id, "upload.created", upload.id, after=describe(upload))
    return upload


async def find_upload(
    session: AsyncSession, tenant_id: str, adapter_reference: str, upload_id: str
) -> Upload:
    """Raises NotFoundError."""
    adapter = await find_adapter(session, tenant_id, adapter_reference)
    upload = None
    if _UPLOAD_ID.fullmatch(upload_id):
        upload = await UploadRepository(session, tenant_id).get(adapter.id, upload_id)
    if upload is None:
        raise NotFoundError("No such upload.", param="upload")
    return upload


async def lock_upload(
    session: AsyncSession, tenant_id: str, upload_id: str, *, if_match: str | None = None
) -> Upload:
    """Raises NotFoundError where the upload is gone since it was found, and as `check_etag`."""
    upload = await UploadRepository(session, tenant_id).lock(upload_id)
    if upload is None:
        raise NotFoundError("No such upload.", param="upload")
    check_etag(UploadView.of(upload, [], "").etag, if_match)
    return upload


async def cancel_upload(
    session: AsyncSession,
    tenant_id: str,
    adapter_reference: str,
    upload_id: str,
    trail: AuditTrail,
    *,
    if_match: str | None = None,
) -> Upload:
    """A worker removes the parts. A second call changes nothing."""
    await find_upload(session, tenant_id, adapter_reference, upload_id)
    upload = await lock_upload(session, tenant_id, upload_id, if_match=if_match)
    if upload.state == "cancelled":
        return upload
    check_open(upload, trail.at)
    before = describe(upload)
    upload.state, upload.ended_at = "cancelled", trail.at
    await session.flush()
    await trail.record(
        session, tenant_id, "upload.cancelled", upload.id, before=before, after=describe(upload)
    )
    return upload


def check_declared(body: UploadCreate, max_upload_bytes: int) -> None:
    """Raises the refusal of what could never be accepted."""
    allowed = max_bytes_by_name(max_upload_bytes)
    names = [file.path for file in body.files]
    for file in body.files:
        if file.path not in allowed:
            raise refuse_unexpected(file.path, b"")
        if file.bytes > allowed[file.path]:
            raise too_large(allowed[file.path], param=file.path)
        if names.count(file.path) > 1:
            raise BadRequestError(f"'{file.path}' is declared twice.", param="files")
    for name, code in _REQUIRED.items():
        if name not in names:
            raise UnprocessableError(f"The upload holds no {name}.", code=code, param=name)


def check_open(upload: Upload, now: datetime) -> None:
    """Raises ConflictError where nothing more is taken."""
    if upload.state == "uploading" and upload.expires_at > now:
        return
    raise closed(upload, now)


def closed(upload: Upload, now: datetime) -> ApiError:
    """Why an upload takes nothing more."""
    state = upload.state
    if state == "expired" or (state == "uploading" and upload.expires_at <= now):
        code, message = "upload_expired", "The upload has expired. Begin a new one."
    elif state == "cancelled":
        code, message = "upload_cancelled", "The upload was cancelled. Begin a new one."
    else:
        code, message = "upload_already_completed", f"The upload is {state}."
    return ConflictError(message, code=code, param="upload")


def describe(upload: Upload) -> dict[str, object]:
    """An upload in a few words, for the audit log."""
    files = [{"path": file["path"], "bytes": file["bytes"]} for file in upload.files]
    return {"adapter_id": upload.adapter_id, "state": upload.state, "files": files}
