"""Takes one part: a raw body, of exactly the bytes that were declared.

Knows nothing of what the parts make. Invariants: what the headers give away is refused before the
body is read; no database connection is held while the client sends; a part is written down only
once its bytes can be read by any process.
"""

from __future__ import annotations

import asyncio
import hashlib
import re
from pathlib import Path

from starlette.requests import Request

from app.adapters.receive import max_bytes_by_name
from app.adapters.staging import staging
from app.adapters.storage_errors import storage_errors
from app.context import AppContext
from app.db import tenant_scope
from app.errors import (
    NO_RETRY,
    ApiError,
    NotFoundError,
    UnprocessableError,
    UnsupportedMediaTypeError,
)
from app.receiving import declared_bytes, pump, refuse_encoding, too_large
from app.sinks import new_file
from app.uploads.layout import Part, find_part
from app.uploads.repository import UploadRepository
from app.uploads.service import check_open, find_upload, lock_upload
from app.uploads.tables import UploadPart

DIGEST_HEADER = "x-content-sha256"
_RANGE = re.compile(r"bytes (\d{1,18})-(\d{1,18})/(\d{1,18}|\*)")


async def receive_part(
    context: AppContext,
    tenant_id: str,
    adapter_reference: str,
    upload_id: str,
    path: str,
    number: int,
    request: Request,
) -> UploadPart:
    """Keep a part, in the place of one that was sent before.

    Raises ApiError: 404, 400 `length_mismatch`, 408 `upload_too_slow`, 409, 411 `length_required`,
    413 `file_too_large`, 415, 422 `digest_mismatch`, or 503 where the bytes cannot be kept.
    """
    async with context.database.session() as session:
        await tenant_scope(session, tenant_id)
        upload = await find_upload(session, tenant_id, adapter_reference, upload_id)
    part = find_part(upload, path, number)
    if part is None:
        raise NotFoundError("The upload has no such part.", param="part")
    check_open(upload, context.now())
    check_headers(request, part, max_bytes_by_name(context.settings.max_upload_bytes)[path])
    async with staging(context.settings.data_dir) as folder:
        with storage_errors():
            sha256 = await _receive(request, folder / "part", part)
        _check_digest(request, sha256, part)
        with storage_errors():
            await asyncio.to_thread(
                context.parts.put, upload_id, path, number, sha256, folder / "part"
            )
    return await _write_down(context, tenant_id, upload_id, part, sha256)


def check_headers(request: Request, part: Part, max_file_bytes: int) -> None:
    """Raises the refusal of a request whose headers show that its body is not this part."""
    refuse_encoding(request)
    if request.headers.get("content-type", "").lower().startswith("multipart/"):
        raise UnsupportedMediaTypeError(
            "A part is its bytes alone, without a form around them.", code="multipart_unsupported"
        )
    declared = declared_bytes(request)
    if declared is None:
        raise ApiError(
            411,
            "length_required",
            "invalid_request_error",
            "A part says its length: send Content-Length.",
            headers={"connection": "close", **NO_RETRY},
        )
    if declared > max_file_bytes:
        raise too_large(max_file_bytes, param=part.path)
    content_range = request.headers.get("content-range")
    if declared != part.num_bytes or not _is_range_of(content_range, part):
        raise _wrong_length(part)


def _is_range_of(content_range: str | None, part: Part) -> bool:
    if content_range is None:
        return True
    match = _RANGE.fullmatch(content_range)
    wanted = (part.offset, part.offset + part.num_bytes - 1)
    return match is not None and (int(match[1]), int(match[2])) == wanted


async def _receive(request: Request, target: Path, part: Part) -> str:
    sha256 = hashlib.sha256()
    async with new_file(target) as sink:

        def keep(chunk: bytes) -> None:
            sha256.update(chunk)
            sink.write(chunk)

        num_bytes = await pump(request, keep, part.num_bytes, lambda: _wrong_length(part))
    if num_bytes != part.num_bytes:
        raise _wrong_length(part)
    return sha256.hexdigest()


def _check_digest(request: Request, sha256: str, part: Part) -> None:
    said = request.headers.get(DIGEST_HEADER)
    if said is not None and said.strip().lower() != sha256:
        raise UnprocessableError(
            f"Part {part.number} of '{part.path}' is not what {DIGEST_HEADER} says: it was damaged"
            " on its way. Send it again.",
            code="digest_mismatch",
            param=part.path,
        )


async def _write_down(
    context: AppContext, tenant_id: str, upload_id: str, part: Part, sha256: str
) -> UploadPart:
    async with context.database.session() as session:
        await tenant_scope(session, tenant_id)
        uploads = UploadRepository(session, tenant_id)
        try:
            check_open(await lock_upload(session, tenant_id, upload_id), context.now())
        except ApiError:  # it ended while the client was sending: nobody will ask for the part
            with storage_errors():
                await asyncio.to_thread(
                    context.parts.delete, upload_id, part.path, part.number, sha256
                )
            raise
        row = await uploads.put_part(upload_id, part.path, part.number, part.num_bytes, sha256)
        await session.commit()
    return row


def _wrong_length(part: Part) -> ApiError:
    """The connection is closed: what follows on it is anybody's guess."""
    return ApiError(
        400,
        "length_mismatch",
        "invalid_request_error",
        f"Part {part.number} of '{part.path}' has {part.num_bytes} bytes, from byte {part.offset}"
        " on.",
        param=part.path,
        headers={"connection": "close", **NO_RETRY},
    )
