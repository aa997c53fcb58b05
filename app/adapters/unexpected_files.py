"""Why a file that is no part of an adapter is refused: a name for what somebody tried to upload.

Knows nothing of where the bytes come from. Invariant: nothing is opened or unpacked; the file's
name and its first bytes decide.
"""

from __future__ import annotations

import re
from pathlib import PurePosixPath

from app.errors import NO_RETRY, ApiError, UnprocessableError
from lora.container import sniff
from lora.findings import REFUSALS, clean

_PICKLE_SUFFIXES = frozenset({".bin", ".pt", ".pth", ".pkl", ".pickle", ".ckpt"})
_ARCHIVE_SUFFIXES = frozenset({".zip", ".tar", ".gz", ".tgz", ".bz2", ".xz", ".7z", ".zst"})
_FORMAT_SUFFIXES = frozenset({".npz", ".npy", ".h5", ".nemo", ".onnx"})
_SHARD = re.compile(r".*-\d+-of-\d+\.safetensors|.*\.safetensors\.index\.json")


def refuse_unexpected(name: str, head: bytes) -> ApiError:
    """The refusal of a file called `name` that starts with `head`."""
    shown = clean(name, 80) or "(no name)"
    if _SHARD.fullmatch(name):
        return UnprocessableError(
            f"'{shown}': sharded adapters are not supported; save one adapter_model.safetensors.",
            code="sharded_adapter_unsupported",
            param=shown,
        )
    code = _code_by_content(head) or _code_by_suffix(PurePosixPath(name).suffix.lower())
    if code is None:
        return UnprocessableError(
            f"'{shown}' is not part of an adapter. Send adapter_config.json, "
            "adapter_model.safetensors and, if it has them, chat_template.jinja and eval.jsonl.",
            code="file_not_allowed",
            param=shown,
        )
    status, summary = REFUSALS[code]
    return ApiError(
        status,
        code,
        "invalid_request_error",
        f"'{shown}' is refused unread. {summary} Save the adapter as adapter_model.safetensors.",
        param=shown,
        headers=NO_RETRY,
    )


def _code_by_content(head: bytes) -> str | None:
    found = sniff(head)
    return found[0] if found is not None else None


def _code_by_suffix(suffix: str) -> str | None:
    if suffix in _PICKLE_SUFFIXES:
        return "pickle_not_allowed"
    if suffix in _ARCHIVE_SUFFIXES:
        return "archive_not_supported"
    if suffix == ".gguf":
        return "format_gguf_unsupported"
    return "format_unsupported" if suffix in _FORMAT_SUFFIXES else None
