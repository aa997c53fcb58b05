"""The asynchronous half of an adapter's upload: takes its files out of the body.

Knows nothing of adapters' contents. Invariants: what cannot be accepted is refused before its body
is read where the headers say so; parsing, hashing and writing happen in a thread.
"""

from __future__ import annotations

from pathlib import Path

from starlette.requests import Request

from app.adapters.multipart import MultipartReceiver
from app.chat_templates.checking import MAX_TEMPLATE_BYTES
from app.receiving import (
    MULTIPART_OVERHEAD_BYTES,
    declared_bytes,
    pump,
    refuse_encoding,
    too_large,
)
from app.rollouts.golden_file import MAX_BYTES as MAX_EVAL_BYTES
from app.sinks import to_its_end
from lora.digest import FileDigest
from lora.store import CHAT_TEMPLATE_FILE, CONFIG_FILE, EVAL_FILE, WEIGHTS_FILE

MAX_CONFIG_BYTES = 1 << 20  # `lora` has its own, lower limit, and a better answer


async def receive_files(
    request: Request, folder: Path, max_upload_bytes: int
) -> dict[str, FileDigest]:
    """Write the accepted files to `folder`; their digests by name.

    Raises ApiError: 413 `file_too_large`, 415, 422 `file_not_allowed`, 408 `upload_too_slow`.
    """
    allowed = max_bytes_by_name(max_upload_bytes)
    max_body_bytes = sum(allowed.values()) + MULTIPART_OVERHEAD_BYTES
    refuse_encoding(request)
    declared = declared_bytes(request)
    if declared is not None and declared > max_body_bytes:
        raise too_large(max_body_bytes)
    receiver = MultipartReceiver(request.headers.get("content-type"), folder, allowed)
    try:
        await pump(request, receiver.feed, max_body_bytes, lambda: too_large(max_body_bytes))
        return receiver.finish()
    finally:
        await to_its_end(receiver.close)


def max_bytes_by_name(max_upload_bytes: int) -> dict[str, int]:
    """The files that are accepted, and how large each may be."""
    return {
        CONFIG_FILE: MAX_CONFIG_BYTES,
        WEIGHTS_FILE: max_upload_bytes,
        CHAT_TEMPLATE_FILE: MAX_TEMPLATE_BYTES,
        EVAL_FILE: MAX_EVAL_BYTES,
    }
