"""The JSON of a safetensors header, read entry by entry: its grammar and nothing more of it.

Knows nothing of files. Invariant: time and memory are linear in the header's length, whatever it
holds: no value is built that the format does not have, so no nesting and no size hides in it.

Source: the format's description in the safetensors repository.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator

import msgspec

from lora.findings import clean
from lora.limits import ManifestLimits

DTYPE_BITS = {
    **dict.fromkeys(("F4",), 4),
    **dict.fromkeys(("F6_E2M3", "F6_E3M2"), 6),
    **dict.fromkeys(("BOOL", "U8", "I8", "F8_E5M2", "F8_E4M3", "F8_E8M0"), 8),
    **dict.fromkeys(("F8_E4M3FNUZ", "F8_E5M2FNUZ"), 8),
    **dict.fromkeys(("I16", "U16", "F16", "BF16"), 16),
    **dict.fromkeys(("I32", "U32", "F32"), 32),
    **dict.fromkeys(("I64", "U64", "F64", "C64"), 64),
}
_MAX_DIMS = 8
_MAX_SIZE = 2**63 - 1
_QUOTES_IN_ENTRY = 8  # three names and one dtype

_SPACE = re.compile(r"[ \t\n\r]*")
_STRING = json.JSONDecoder()


class HeaderEntry(msgspec.Struct, forbid_unknown_fields=True):
    dtype: str
    shape: list[int]
    data_offsets: tuple[int, int]


class HeaderError(Exception):
    """The header cannot be read any further; holds the refusal's code."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


def read_entries(raw: bytes, limits: ManifestLimits) -> Iterator[tuple[str, HeaderEntry]]:
    """Each tensor's name and entry, none twice; `__metadata__` is checked and passed over.

    Raises:
        HeaderError: the header breaks the format's grammar or a limit.
    """
    text = _decode(raw)
    seen: set[str] = set()
    position = _skip_space(text, 1)
    if text[position : position + 1] == "}":
        _expect_end(text, position + 1)
        return
    while True:
        name, position = _read_key(text, position)
        if name in seen:
            raise HeaderError("safetensors_duplicate_key", f"{clean(name, 120)!r} occurs twice")
        seen.add(name)
        if name == "__metadata__":
            position = _skip_metadata(text, position, limits)
        elif len(seen) - ("__metadata__" in seen) > limits.max_tensors:
            raise HeaderError("too_many_tensors", f"more than {limits.max_tensors} tensors")
        else:
            end = text.find("}", position) + 1
            yield name, _read_entry(name, text[position:end])
            position = end
        position, more = _next_member(text, position)
        if not more:
            _expect_end(text, position)
            return


def _decode(raw: bytes) -> str:
    try:
        text = raw.decode("utf-8")
    except UnicodeDecodeError:
        raise HeaderError("safetensors_header_invalid", "the header is not UTF-8") from None
    if not text.startswith("{"):
        raise _invalid("it does not begin with {")
    return text.rstrip(" ")


def _read_entry(name: str, text: str) -> HeaderEntry:
    try:
        entry = msgspec.json.decode(text, type=HeaderEntry)
    except (msgspec.MsgspecError, RecursionError) as error:
        raise _invalid(f"entry of {clean(name, 120)!r}: {error}") from None
    if text.count('"') != _QUOTES_IN_ENTRY:
        raise HeaderError("safetensors_duplicate_key", f"entry of {clean(name, 120)!r}")
    if len(entry.shape) > _MAX_DIMS:
        raise _invalid(f"{clean(name, 120)!r} has {len(entry.shape)} dimensions")
    if max(map(abs, entry.data_offsets)) > _MAX_SIZE:
        raise HeaderError("safetensors_offsets_invalid", f"{clean(name, 120)!r}: beyond 2^63")
    if max(map(abs, entry.shape), default=0) > _MAX_SIZE:
        raise HeaderError("safetensors_size_mismatch", f"{clean(name, 120)!r}: beyond 2^63")
    if entry.dtype not in DTYPE_BITS:
        raise HeaderError(
            "safetensors_dtype_unknown", f"{clean(name, 120)!r}: {clean(entry.dtype, 40)!r}"
        )
    return entry


def _skip_metadata(text: str, position: int, limits: ManifestLimits) -> int:
    """Check that `__metadata__` maps strings to strings within its limit; return its end."""
    begin = position
    if text[position : position + 1] != "{":
        raise _invalid("__metadata__ is not an object")
    position = _skip_space(text, position + 1)
    if text[position : position + 1] == "}":
        return position + 1
    more, seen = True, set[str]()
    while more:
        key, position = _read_key(text, position)
        if key in seen:
            raise HeaderError("safetensors_duplicate_key", "__metadata__ names a field twice")
        seen.add(key)
        _, position = _read_string(text, position)
        position, more = _next_member(text, position)
        if position - begin > limits.max_metadata_bytes:
            raise _invalid(f"__metadata__ exceeds {limits.max_metadata_bytes} bytes")
    return position


def _read_key(text: str, position: int) -> tuple[str, int]:
    key, position = _read_string(text, position)
    position = _skip_space(text, position)
    if text[position : position + 1] != ":":
        raise _invalid(f"a colon is missing at {position}")
    return key, _skip_space(text, position + 1)


def _read_string(text: str, position: int) -> tuple[str, int]:
    if text[position : position + 1] != '"':
        raise _invalid(f"a string is missing at {position}")
    try:
        value, end = _STRING.raw_decode(text, position)
    except json.JSONDecodeError as error:
        raise _invalid(str(error)) from None
    return str(value), end


def _next_member(text: str, position: int) -> tuple[int, bool]:
    """Step over `,` or `}`; the second value says whether another member follows."""
    position = _skip_space(text, position)
    mark = text[position : position + 1]
    if mark == ",":
        return _skip_space(text, position + 1), True
    if mark == "}":
        return position + 1, False
    raise _invalid(f"a comma or a brace is missing at {position}")


def _skip_space(text: str, position: int) -> int:
    match = _SPACE.match(text, position)
    return position if match is None else match.end()


def _expect_end(text: str, position: int) -> None:
    if position != len(text):
        raise _invalid(f"something follows its end at {position}")


def _invalid(message: str) -> HeaderError:
    return HeaderError("safetensors_header_invalid", f"the header is malformed: {message}")
