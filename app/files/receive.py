"""The asynchronous half of a file's upload: takes the body, within limits of size and time.

Knows nothing of what becomes of the bytes. Invariants: what is too large is refused before its body
is read where the headers say so; parsing happens in a thread; a client that sends too slowly is
answered, not waited for.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, AsyncIterator

from starlette.requests import Request

from app.errors import ApiError, PayloadTooLargeError, UnsupportedMediaTypeError
from app.files.form import FileForm

OVERHEAD_BYTES = 64 << 10  # of boundaries, headers and fields
CHUNK_BYTES = 1 << 20
STALL_TIMEOUT_S = 30.0
MIN_BYTES_PER_S = 8 << 10


def refuse_by_headers(request: Request, max_bytes: int) -> None:
    """Raises ApiError: 413 `file_too_large`, 415 `content_encoding_unsupported`."""
    if request.headers.get("content-encoding", "identity").lower() != "identity":
        raise UnsupportedMediaTypeError(
            "Send the upload without Content-Encoding.", code="content_encoding_unsupported"
        )
    declared = request.headers.get("content-length", "0")
    is_number = declared.isascii() and declared.isdigit()
    if is_number and int(declared[:20]) > max_bytes + OVERHEAD_BYTES:
        raise _too_large(max_bytes)


async def file_chunks(
    request: Request, form: FileForm, max_bytes: int
) -> AsyncGenerator[bytes, None]:
    """The file of the request's body, a piece at a time; when it ends, the form is complete.

    Raises ApiError: 400, 408 `upload_too_slow`, 413 `file_too_large`.
    """
    started_at = time.monotonic()
    num_received = num_bytes = 0
    pending = bytearray()
    is_over = False
    stream = aiter(request.stream())
    while not is_over:
        chunk = await _next(stream)
        is_over = chunk is None
        pending += chunk or b""
        num_received += len(chunk or b"")
        _check_pace(num_received, time.monotonic() - started_at)
        if num_received > max_bytes + OVERHEAD_BYTES:
            raise _too_large(max_bytes)
        if len(pending) >= CHUNK_BYTES or is_over:
            found = await asyncio.to_thread(form.feed, bytes(pending))
            pending.clear()
            num_bytes += len(found)
            if num_bytes > max_bytes:
                raise _too_large(max_bytes)
            if found:
                yield found
    form.finish()


async def _next(stream: AsyncIterator[bytes]) -> bytes | None:
    try:
        async with asyncio.timeout(STALL_TIMEOUT_S):
            return await anext(stream, None)
    except TimeoutError as error:
        raise _too_slow() from error


def _check_pace(num_bytes: int, elapsed_s: float) -> None:
    if num_bytes < MIN_BYTES_PER_S * (elapsed_s - STALL_TIMEOUT_S):
        raise _too_slow()


def _too_large(max_bytes: int) -> ApiError:
    return PayloadTooLargeError(
        f"The file exceeds the limit of {max_bytes} bytes.", code="file_too_large", param="file"
    )


def _too_slow() -> ApiError:
    return ApiError(408, "upload_too_slow", "timeout", "The upload was too slow.")
