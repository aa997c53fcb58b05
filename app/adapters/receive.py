"""The asynchronous half of an upload: takes the body, within limits of size and time.

Knows nothing of adapters' contents. Invariants: what cannot be accepted is refused before its body
is read where the headers say so; parsing, hashing and writing happen in a thread; a client that
sends too slowly is answered, not waited for.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
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
    refuse_encoding(request)
    declared = declared_bytes(request)
    if declared is not None and declared > max_body_bytes:
        raise too_large(max_body_bytes)
    receiver = MultipartReceiver(
        request.headers.get("content-type"), folder, max_bytes_by_name(max_upload_bytes)
    )
    try:
        await pump(request, receiver.feed, max_body_bytes, lambda: too_large(max_body_bytes))
        return receiver.finish()
    finally:
        receiver.close()


def max_bytes_by_name(max_upload_bytes: int) -> dict[str, int]:
    """The files that are accepted, and how large each may be."""
    return {CONFIG_FILE: MAX_CONFIG_BYTES, WEIGHTS_FILE: max_upload_bytes}


async def pump(
    request: Request,
    feed: Callable[[bytes], None],
    max_bytes: int,
    too_long: Callable[[], ApiError],
) -> int:
    """Hand the body to `feed`, in a thread, a mebibyte at a time; how many bytes it had.

    Raises `too_long()` once it has more than `max_bytes`, or ApiError 408 `upload_too_slow`.
    """
    started_at = time.monotonic()
    num_bytes = 0
    pending = bytearray()
    stream = aiter(request.stream())
    while True:
        try:
            async with asyncio.timeout(STALL_TIMEOUT_S):
                chunk = await anext(stream, None)
        except TimeoutError as error:
            raise too_slow() from error
        if chunk is None:
            break
        num_bytes += len(chunk)
        if num_bytes > max_bytes:
            raise too_long()
        elapsed_s = time.monotonic() - started_at
        if num_bytes < MIN_BYTES_PER_S * (elapsed_s - STALL_TIMEOUT_S):
            raise too_slow()
        pending += chunk
        if len(pending) >= CHUNK_BYTES:
            await asyncio.to_thread(feed, bytes(pending))
            pending.clear()
    await asyncio.to_thread(feed, bytes(pending))
    return num_bytes


def refuse_encoding(request: Request) -> None:
    """Raises UnsupportedMediaTypeError for a body that would have to be unpacked."""
    if request.headers.get("content-encoding", "identity").lower() != "identity":
        raise UnsupportedMediaTypeError(
            "Send the upload without Content-Encoding.", code="content_encoding_unsupported"
        )


def declared_bytes(request: Request) -> int | None:
    """What the headers say of the body's length; None where they say nothing that is a number."""
    declared = request.headers.get("content-length", "")
    return int(declared[:20]) if declared.isascii() and declared.isdigit() else None


def too_large(max_bytes: int, param: str | None = None) -> ApiError:
    return PayloadTooLargeError(
        f"The upload exceeds the limit of {max_bytes} bytes.", code="file_too_large", param=param
    )


def too_slow() -> ApiError:
    return ApiError(
        408,
        "upload_too_slow",
        "timeout",
        "The upload was too slow.",
        headers={"connection": "close"},
    )
