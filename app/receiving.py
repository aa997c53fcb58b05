"""Takes the body of an upload, within limits of size and time.

Knows nothing of what the bytes are. Invariants: what the headers give away can be refused before
the body is read; a client that sends too slowly is answered, not waited for. Only the time that is
spent waiting for it counts: what the server takes to digest the body is its own affair.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import aclosing

from starlette.exceptions import HTTPException
from starlette.requests import Request

from app.body_timeout import MIN_BYTES_PER_S
from app.errors import ApiError, PayloadTooLargeError, UnsupportedMediaTypeError

MULTIPART_OVERHEAD_BYTES = 64 << 10  # of boundaries, headers and fields
CHUNK_BYTES = 1 << 20
STALL_TIMEOUT_S = 30.0


async def body_chunks(
    request: Request, max_bytes: int, too_long: Callable[[], ApiError]
) -> AsyncGenerator[bytes, None]:
    """The body, a mebibyte or a little more at a time.

    Raises `too_long()` once it has more than `max_bytes`, or ApiError 408 `upload_too_slow`.
    """
    num_bytes, waited_s = 0, 0.0
    pending = bytearray()
    stream = aiter(request.stream())
    loop = asyncio.get_running_loop()
    while True:
        began_at = loop.time()
        chunk = await _next(stream)
        waited_s += loop.time() - began_at
        if chunk is None:
            break
        num_bytes += len(chunk)
        if num_bytes > max_bytes:
            raise too_long()
        if num_bytes < MIN_BYTES_PER_S * (waited_s - STALL_TIMEOUT_S):
            raise too_slow()
        pending += chunk
        if len(pending) >= CHUNK_BYTES:
            yield bytes(pending)
            pending.clear()
    if pending:
        yield bytes(pending)


async def pump(
    request: Request,
    feed: Callable[[bytes], None],
    max_bytes: int,
    too_long: Callable[[], ApiError],
) -> int:
    """Hand the body to `feed`, in a thread; how many bytes it had. Raises as `body_chunks`."""
    num_bytes = 0
    async with aclosing(body_chunks(request, max_bytes, too_long)) as chunks:
        async for chunk in chunks:
            await asyncio.to_thread(feed, chunk)
            num_bytes += len(chunk)
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


async def _next(stream: AsyncIterator[bytes]) -> bytes | None:
    try:
        async with asyncio.timeout(STALL_TIMEOUT_S):
            return await anext(stream, None)
    except TimeoutError as error:
        raise too_slow() from error
    except HTTPException as error:
        if error.status_code != 408:  # as `app.body_timeout` says it
            raise
        raise too_slow() from error
