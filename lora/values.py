"""The numbers in an adapter's tensors: are they finite, and do they change anything?

NumPy only, memory-mapped and in chunks, so that a large adapter is checked in little memory.
Blocking: call it from a thread or a worker. Invariant: reads only the tensors of the manifest.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lora.findings import Finding, Findings
from lora.manifest import AdapterManifest, TensorSpan
from lora.store import WEIGHTS_FILE

_CHUNK_ELEMENTS = 1 << 20

# Stored type and bits: a float is non-finite where all bits of its exponent are set.
_STORED: dict[str, tuple[str, int, int]] = {
    # dtype: (little-endian unsigned type, exponent mask, magnitude mask)
    "F32": ("<u4", 0x7F80_0000, 0x7FFF_FFFF),
    "F16": ("<u2", 0x7C00, 0x7FFF),
    "BF16": ("<u2", 0x7F80, 0x7FFF),
}


def check_values(weights: Path, manifest: AdapterManifest) -> list[Finding]:
    """Every tensor that holds NaN or infinity is an error; B zero throughout is a warning.

    Raises:
        OSError, ValueError: the file is not the one that `manifest` was read from.
    """
    findings = Findings(WEIGHTS_FILE)
    data = np.memmap(weights, dtype=np.uint8, mode="r")
    is_zero: dict[str, bool] = {}
    for span in manifest.spans:
        is_finite, is_zero[span.name] = _scan(data, span)
        if not is_finite:
            findings.refuse("tensor_nonfinite", "holds NaN or infinity", param=span.name)
    # NOTE: what stands for the base's own tensors is taken to differ from them.
    changes = [*manifest.overrides, *(each for each in manifest.modules if each.magnitude)]
    deltas = [
        span
        for module in manifest.modules
        if module.scale != 0
        for span in (module.b, module.bias)
        if span is not None
    ]
    if not changes and all(is_zero[span.name] for span in deltas):
        findings.warn("no_effect", "every lora_B, or its scale, is zero: nothing was trained")
    return list(findings.all())


def _scan(data: NDArray[np.uint8], span: TensorSpan) -> tuple[bool, bool]:
    """Whether all elements are finite, and whether all are zero."""
    if span.end > len(data):
        raise ValueError(f"{span.name} lies beyond the end of the file")
    stored, exponent, magnitude = _STORED[span.dtype]
    is_finite, is_zero = True, True
    for bits in _chunks(data[span.begin : span.end], np.dtype(stored)):
        is_finite = is_finite and not bool(((bits & exponent) == exponent).any())
        is_zero = is_zero and not bool((bits & magnitude).any())
    return is_finite, is_zero


def _chunks(raw: NDArray[np.uint8], stored: np.dtype[Any]) -> Iterator[NDArray[Any]]:
    num_bytes = _CHUNK_ELEMENTS * stored.itemsize
    for begin in range(0, len(raw), num_bytes):
        # A copy, because a tensor may lie at an address that its type is not aligned to.
        yield np.frombuffer(raw[begin : begin + num_bytes].tobytes(), dtype=stored)
