"""The asynchronous half of an upload: takes the body, within limits of size and time.

Knows nothing of adapters' contents. Invariants: what cannot be accepted is refused before its body
is read where the headers say so; parsing, hashing and writing happen in a thread; a client that
sends too slowly is answered, not waited for.
"""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

from starlette.requests import Request

from app.adapters.multipart import MultipartReceiver
from app.errors import ApiError, PayloadTooLargeError, UnsupportedMediaTypeError
from lora.digest import FileDigest
from lora.store import CONFIG_FILE, WEIGHTS_FILE

MAX_CONFIG_BYTES = 1 << 20  # `lora` has its own, lower limit, and a better answer
MULTIPART_OVERHEAD_BYTES = 64 << 10
CHUNK_BYTES = 1 << 20
STALL_TIMEOUT_S = 30.0
MIN_BYTES_PER_S = 8 << 10


async def receive_files(
    request: Request, folder: Path, max_upload_bytes: int
) -> dict[str, FileDigest]:
    """Write the accepted files to `folder`; their digests by name.

    Raises ApiError: 413 `file_too_large`, 415, 422 `file_not_allowed`, 408 `upload_too_slow`.
    """
    max_body_bytes = max_upload_bytes + MAX_CONFIG_BYTES + MULTIPART_OVERHEAD_BYTES
    _refuse_by_headers(request, max_body_bytes)
    receiver = MultipartReceiver(
        request.headers.get("content-type"),
        folder,
        {CONFIG_FILE: MAX_CONFIG_BYTES, WEIGHTS_FILE: max_upload_bytes},
    )
    try:
        await _pump(request, receiver, max_body_bytes)
        return receiver.finish()
    finally:
        receiver.close()


async def _pump(request: Request, receiver: MultipartReceiver, max_body_bytes: int) -> None:
    started_at = time.monotonic()
    num_bytes = 0
    pending = bytearray()
    stream = aiter(request.stream())
    while True:
        try:
            async with asyncio.timeout(STALL_TIMEOUT_S):
                chunk = await anext(stream, None)
        except TimeoutError as error:
            raise _too_slow() from error
        if chunk is None:
            break
        num_bytes += len(chunk)
        if num_bytes > max_body_bytes:
            raise _too_large(max_body_bytes)
        elapsed_s = time.monotonic() - started_at
        if num_bytes < MIN_BYTES_PER_S * (elapsed_s - STALL_TIMEOUT_S):
            raise _too_slow()
        pending += chunk
        if len(pending) >= CHUNK_BYTES:
            await asyncio.to_thread(receiver.feed, bytes(pending))
            pending.clear()
    await asyncio.to_thread(receiver.feed, bytes(pending))


def _refuse_by_headers(request: Request, max_body_bytes: int) -> None:
    encoding = request.headers.get("content-encoding", "identity").lower()
    if encoding != "identity":
        raise UnsupportedMediaTypeError(
            "Send the upload without Content-Encoding.", code="content_encoding_unsupported"
        )
    declared = request.headers.get("content-length", "0")
    if declared.isascii() and declared.isdigit() and int(declared[:20]) > max_body_bytes:
        raise _too_large(max_body_bytes)


def _too_large(max_bytes: int) -> ApiError:
    return PayloadTooLargeError(
        f"The upload exceeds the limit of {max_bytes} bytes.", code="file_too_large"
    )


def _too_slow() -> ApiError:
    return ApiError(408, "upload_too_slow", "timeout", "The upload was too slow.")
