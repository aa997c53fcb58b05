"""The header of a safetensors file, read strictly: bounds before reads, nothing taken on trust.

Knows nothing of adapters. Invariant: the tensors it returns cover the file's data exactly, without
hole or overlap, and each one's shape and dtype give its number of bytes; or a finding says not.
The header's grammar is read entry by entry, so that no nesting and no size hides in it.

Source: the format's description in the safetensors repository.
"""

from __future__ import annotations

import json
import math
import os
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import msgspec

from lora.container import HEAD_BYTES, sniff
from lora.findings import Findings, clean
from lora.limits import ManifestLimits

_LENGTH_BYTES = 8
_DTYPE_BITS = {
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


@dataclass(frozen=True, slots=True)
class TensorSpan:
    """Where a tensor lies: absolute byte offsets [begin, end) in the file.

    In a manifest `dtype` is "F32", "F16" or "BF16".
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    begin: int
    end: int

    @property
    def num_elements(self) -> int:
        return math.prod(self.shape)


class _Entry(msgspec.Struct, forbid_unknown_fields=True):
    dtype: str
    shape: list[int]
    data_offsets: tuple[int, int]


class _HeaderError(Exception):
    """The header cannot be read any further; holds the refusal's code."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


def read_header(
    weights: Path, limits: ManifestLimits, findings: Findings
) -> tuple[TensorSpan, ...] | None:
    """The file's tensors in the order of their data; None where `findings` says why not.

    A tensor with a problem of its own (size, dtype name) is reported and still returned where its
    entry could be read, so that later checks can list what else is wrong.
    """
    try:
        raw, num_data_bytes = _read_raw(weights, limits)
        entries = dict(_entries(_decode(raw), limits))
    except _HeaderError as error:
        findings.refuse(error.code, str(error))
        return None
    data_begin = _LENGTH_BYTES + len(raw)
    spans = sorted(
        (_span(name, entry, data_begin) for name, entry in entries.items()),
        key=lambda span: (span.begin, span.end),
    )
    _check_layout(spans, data_begin, num_data_bytes, findings)
    if not spans:
        findings.refuse("adapter_empty", "the file holds no tensors")
    return tuple(spans)


def _read_raw(weights: Path, limits: ManifestLimits) -> tuple[bytes, int]:
    """The header's bytes, and how many bytes of data follow it."""
    with weights.open("rb") as file:
        num_bytes = os.fstat(file.fileno()).st_size
        head = file.read(HEAD_BYTES)
        if (found := sniff(head)) is not None:
            raise _HeaderError(found[0], f"the weights are not safetensors but: {found[1]}")
        if num_bytes < _LENGTH_BYTES:
            raise _HeaderError("safetensors_truncated", f"the file has {num_bytes} bytes")
        length = int.from_bytes(head[:_LENGTH_BYTES], "little")
        if not 0 < length <= num_bytes - _LENGTH_BYTES:
            raise _HeaderError(
                "safetensors_header_length",
                f"a header of {length} bytes does not fit a file of {num_bytes}",
            )
        if length > limits.max_header_bytes:
            raise _HeaderError(
                "safetensors_header_too_large",
                f"a header of {length} bytes exceeds the limit of {limits.max_header_bytes}",
            )
        file.seek(_LENGTH_BYTES)
        return file.read(length), num_bytes - _LENGTH_BYTES - length


def _decode(raw: bytes) -> str:
    try:
        text = raw.decode("utf-8")
    except UnicodeDecodeError:
        raise _HeaderError("safetensors_header_invalid", "the header is not UTF-8") from None
    if not text.startswith("{"):
        raise _invalid("it does not begin with {")
    return text.rstrip(" ")


def _entries(text: str, limits: ManifestLimits) -> Iterator[tuple[str, _Entry]]:
    """Each tensor's name and entry; `__metadata__` is checked and passed over."""
    seen: set[str] = set()
    position = _skip_space(text, 1)
    if text[position : position + 1] == "}":
        _expect_end(text, position + 1)
        return
    while True:
        name, position = _read_key(text, position)
        if name in seen:
            raise _HeaderError("safetensors_duplicate_key", f"{clean(name, 120)!r} occurs twice")
        seen.add(name)
        if name == "__metadata__":
            position = _skip_metadata(text, position, limits)
        elif len(seen) - ("__metadata__" in seen) > limits.max_tensors:
            raise _HeaderError("too_many_tensors", f"more than {limits.max_tensors} tensors")
        else:
            end = text.find("}", position) + 1
            yield name, _read_entry(name, text[position:end])
            position = end
        position, more = _next_member(text, position)
        if not more:
            _expect_end(text, position)
            return


def _read_entry(name: str, text: str) -> _Entry:
    try:
        entry = msgspec.json.decode(text, type=_Entry)
    except (msgspec.MsgspecError, RecursionError) as error:
        raise _invalid(f"entry of {clean(name, 120)!r}: {error}") from None
    if text.count('"') != _QUOTES_IN_ENTRY:
        raise _HeaderError("safetensors_duplicate_key", f"entry of {clean(name, 120)!r}")
    if len(entry.shape) > _MAX_DIMS:
        raise _invalid(f"{clean(name, 120)!r} has {len(entry.shape)} dimensions")
    if max(map(abs, entry.data_offsets)) > _MAX_SIZE:
        raise _HeaderError("safetensors_offsets_invalid", f"{clean(name, 120)!r}: beyond 2^63")
    if max(map(abs, entry.shape), default=0) > _MAX_SIZE:
        raise _HeaderError("safetensors_size_mismatch", f"{clean(name, 120)!r}: beyond 2^63")
    if entry.dtype not in _DTYPE_BITS:
        raise _HeaderError(
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
            raise _HeaderError("safetensors_duplicate_key", "__metadata__ names a field twice")
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


def _invalid(message: str) -> _HeaderError:
    return _HeaderError("safetensors_header_invalid", f"the header is malformed: {message}")


def _span(name: str, entry: _Entry, data_begin: int) -> TensorSpan:
    begin, end = entry.data_offsets
    return TensorSpan(name, entry.dtype, tuple(entry.shape), data_begin + begin, data_begin + end)


def _check_layout(
    spans: Iterable[TensorSpan], data_begin: int, num_data_bytes: int, findings: Findings
) -> None:
    """Report what does not tile the data; a mere cut or a mere tail is a length mismatch."""
    expected_begin, data_end, is_tiled = data_begin, data_begin + num_data_bytes, True
    outside: list[TensorSpan] = []
    for span in spans:
        if span.begin != expected_begin or span.end < span.begin:
            is_tiled = False
            findings.refuse(
                "safetensors_offsets_invalid",
                "tensors must follow each other without hole or overlap",
                param=span.name,
                expected=expected_begin - data_begin,
                actual=[span.begin - data_begin, span.end - data_begin],
            )
        if not _has_its_size(span):
            is_tiled = False
            findings.refuse(
                "safetensors_size_mismatch",
                f"{list(span.shape)} of {span.dtype} does not give its bytes",
                param=span.name,
                actual=span.end - span.begin,
            )
        if span.end > data_end:
            outside.append(span)
        expected_begin = max(expected_begin, span.end)
    if not is_tiled:
        for span in outside:
            findings.refuse("safetensors_offsets_invalid", "outside the file", param=span.name)
    elif expected_begin != data_end:
        findings.refuse(
            "safetensors_length_mismatch",
            "the data is cut off or something follows it",
            expected=expected_begin - data_begin,
            actual=num_data_bytes,
        )


def _has_its_size(span: TensorSpan) -> bool:
    if any(size < 0 for size in span.shape):
        return False
    return span.num_elements * _DTYPE_BITS[span.dtype] == (span.end - span.begin) * 8
