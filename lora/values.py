"""The numbers in an adapter's tensors: are they finite, are they of a size that can be reckoned
with, and do they change anything?

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
from lora.tied_values import check_tied

_CHUNK_ELEMENTS = 1 << 20

# The largest float16. Up to it no weight that an adapter makes overflows in float32, nor does the
# norm of a row of them: |alpha / r| * r * 65504 ** 2 <= 1e4 * 1024 * 65504 ** 2 < 4.4e16, and
# 170,000 squares of that add up to less than float32's largest.
MAX_MAGNITUDE = 65504.0

# Stored type and bits. A float's bits without its sign grow with its magnitude, NaN's beyond all.
_STORED: dict[str, tuple[str, int, int, int]] = {
    # dtype: (little-endian unsigned type, mask of all but the sign, infinity, the largest taken)
    "F32": ("<u4", 0x7FFF_FFFF, 0x7F80_0000, 0x477F_E000),
    "F16": ("<u2", 0x7FFF, 0x7C00, 0x7BFF),
    "BF16": ("<u2", 0x7FFF, 0x7F80, 0x477F),
}


def check_values(weights: Path, manifest: AdapterManifest) -> list[Finding]:
    """What is wrong with the numbers.

    A tensor that holds NaN, infinity or more than `MAX_MAGNITUDE` is an error, and so is one of a
    tied pair that holds other numbers than the other; B zero throughout is a warning.

    Raises:
        OSError, ValueError: the file is not the one that `manifest` was read from.
    """
    findings = Findings(WEIGHTS_FILE)
    data = np.memmap(weights, dtype=np.uint8, mode="r")
    is_zero: dict[str, bool] = {}
    for span in manifest.spans:
        _, _, infinity, allowed = _STORED[span.dtype]
        largest = _largest(data, span)
        is_zero[span.name] = largest == 0
        if largest >= infinity:
            findings.refuse("tensor_nonfinite", "holds NaN or infinity", param=span.name)
        elif largest > allowed:
            findings.refuse(
                "dtype_overflow",
                "holds a number that is too large to reckon with",
                param=span.name,
                expected=f"at most {MAX_MAGNITUDE:g}",
                actual=f"{_value(span.dtype, largest):g}",
            )
    check_tied(data, manifest.tied, findings)
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


def _largest(data: NDArray[np.uint8], span: TensorSpan) -> int:
    """The bits of the largest magnitude in a tensor; a NaN is the largest of all."""
    if span.end > len(data):
        raise ValueError(f"{span.name} lies beyond the end of the file")
    stored, magnitude, _, _ = _STORED[span.dtype]
    chunks = _chunks(data[span.begin : span.end], np.dtype(stored))
    return max(int((bits & magnitude).max()) for bits in chunks)


def _value(dtype: str, bits: int) -> float:
    """What is stored as F32 or BF16; no float16 is too large."""
    return float(np.uint32(bits << 16 if dtype == "BF16" else bits).view(np.float32))


def _chunks(raw: NDArray[np.uint8], stored: np.dtype[Any]) -> Iterator[NDArray[Any]]:
    num_bytes = _CHUNK_ELEMENTS * stored.itemsize
    for begin in range(0, len(raw), num_bytes):
        # A copy, because a tensor may lie at an address that its type is not aligned to.
        yield np.frombuffer(raw[begin : begin + num_bytes].tobytes(), dtype=stored)
