"""The header of a safetensors file, read strictly: bounds before reads, nothing taken on trust.

Knows nothing of adapters. Invariant: the tensors it returns cover the file's data exactly, without
hole or overlap, and each one's shape and dtype give its number of bytes; or a finding says not.

Source: the format's description in the safetensors repository.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from lora.container import HEAD_BYTES, sniff
from lora.findings import Findings
from lora.header_entries import DTYPE_BITS, HeaderEntry, HeaderError, read_entries
from lora.limits import ManifestLimits

_LENGTH_BYTES = 8


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


def read_header(
    weights: Path, limits: ManifestLimits, findings: Findings
) -> tuple[TensorSpan, ...] | None:
    """The file's tensors in the order of their data; None where `findings` says why not.

    A tensor with a problem of its own (size, dtype name) is reported and still returned where its
    entry could be read, so that later checks can list what else is wrong.
    """
    try:
        raw, num_data_bytes = _read_raw(weights, limits)
        entries = dict(read_entries(raw, limits))
    except HeaderError as error:
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
            raise HeaderError(found[0], f"the weights are not safetensors but: {found[1]}")
        if num_bytes < _LENGTH_BYTES:
            raise HeaderError("safetensors_truncated", f"the file has {num_bytes} bytes")
        length = int.from_bytes(head[:_LENGTH_BYTES], "little")
        if not 0 < length <= num_bytes - _LENGTH_BYTES:
            raise HeaderError(
                "safetensors_header_length",
                f"a header of {length} bytes does not fit a file of {num_bytes}",
            )
        if length > limits.max_header_bytes:
            raise HeaderError(
                "safetensors_header_too_large",
                f"a header of {length} bytes exceeds the limit of {limits.max_header_bytes}",
            )
        file.seek(_LENGTH_BYTES)
        return file.read(length), num_bytes - _LENGTH_BYTES - length


def _span(name: str, entry: HeaderEntry, data_begin: int) -> TensorSpan:
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
    return span.num_elements * DTYPE_BITS[span.dtype] == (span.end - span.begin) * 8
