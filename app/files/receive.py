"""The asynchronous half of a file's upload: takes the file out of the body.

Knows nothing of what becomes of the bytes. Invariants: what is too large is refused before its body
is read where the headers say so; parsing happens in a thread.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing

from starlette.requests import Request

from app.files.form import FILE, FileForm
from app.receiving import (
    MULTIPART_OVERHEAD_BYTES,
    body_chunks,
    declared_bytes,
    refuse_encoding,
    too_large,
)


def refuse_by_headers(request: Request, max_bytes: int) -> None:
    """Raises ApiError: 413 `file_too_large`, 415 `content_encoding_unsupported`."""
    refuse_encoding(request)
    declared = declared_bytes(request)
    if declared is not None and declared > max_bytes + MULTIPART_OVERHEAD_BYTES:
        raise too_large(max_bytes, FILE)


async def file_chunks(
    request: Request, form: FileForm, max_bytes: int
) -> AsyncGenerator[bytes, None]:
    """The file of the request's body, a piece at a time; when it ends, the form is complete.

    Raises ApiError: 400, 408 `upload_too_slow`, 413 `file_too_large`.
    """
    num_bytes = 0
    max_body_bytes = max_bytes + MULTIPART_OVERHEAD_BYTES
    body = body_chunks(request, max_body_bytes, lambda: too_large(max_bytes, FILE))
    async with aclosing(body):
        async for chunk in body:
            found = await asyncio.to_thread(form.feed, chunk)
            num_bytes += len(found)
            if num_bytes > max_bytes:
                raise too_large(max_bytes, FILE)
            if found:
                yield found
    form.finish()
