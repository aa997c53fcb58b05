"""Whether what an adapter says of the base's own numbers is true of this base.

NumPy only, memory-mapped and in chunks. Blocking: call it from a thread or a worker. Invariant: a
tensor that is passed over as a copy of the base's holds the base's numbers, up to a unit in the
last place of the coarser of the two types.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lora.base_files import BaseFiles
from lora.findings import Finding, Findings
from lora.manifest import AdapterManifest, TensorSpan
from lora.overrides import shown
from lora.store import WEIGHTS_FILE

_CHUNK_ELEMENTS = 1 << 20
# One unit in a number's last place: relative to it, and at least.
_UNITS = {"F32": (0.0, 0.0), "F16": (2.0**-10, 2.0**-24), "BF16": (2.0**-7, 2.0**-133)}
_STORED: dict[str, np.dtype[Any]] = {
    "F32": np.dtype("<f4"),
    "F16": np.dtype("<f2"),
    "BF16": np.dtype("<u2"),
}


def check_against_base(weights: Path, manifest: AdapterManifest, base: BaseFiles) -> list[Finding]:
    """An error for each copy that differs, and for each norm that the base's cannot be turned into.

    Raises:
        OSError, ValueError: a file is not the one that its header was read from.
    """
    findings = Findings(WEIGHTS_FILE)
    for copy in manifest.copies:
        path, span = _find(base, copy.key)
        if not all(_equal(*pair) for pair in _pairs(weights, copy.span, path, span)):
            findings.refuse(
                "base_model_mismatch",
                f"the file's copy of the base's {shown(copy.key)} holds other numbers",
                param=copy.span.name,
            )
    for override in manifest.overrides:
        if override.what != "weight" or len(override.span.shape) != 1:
            continue
        path, span = _find(base, override.key)
        for (own, _), (base_values, _) in _pairs(weights, override.span, path, span):
            if bool(((base_values == 0) & (own != 0)).any()):
                findings.refuse(
                    "modules_to_save_unsupported",
                    f"{shown(override.key)} is zero in the base where the file's is not",
                    param=override.span.name,
                )
    return list(findings.all())


_Chunk = tuple[NDArray[np.float32], str]


def _find(base: BaseFiles, key: tuple[int, str]) -> tuple[Path, TensorSpan]:
    found = base.find(key, "weight")
    if found is None:
        raise ValueError(f"the base's files have no {shown(key)}")
    return found


def _pairs(
    weights: Path, span: TensorSpan, path: Path, of_base: TensorSpan
) -> Iterator[tuple[_Chunk, _Chunk]]:
    if span.num_elements != of_base.num_elements:
        raise ValueError(f"{of_base.name} of the base has another size than its configuration says")
    for own, base in zip(_values(weights, span), _values(path, of_base), strict=True):
        yield (own, span.dtype), (base, of_base.dtype)


def _values(path: Path, span: TensorSpan) -> Iterator[NDArray[np.float32]]:
    """The tensor's numbers as float32, chunk by chunk."""
    data = np.memmap(path, dtype=np.uint8, mode="r")
    if span.end > len(data):
        raise ValueError(f"{span.name} lies beyond the end of the file")
    stored = _STORED[span.dtype]
    step = _CHUNK_ELEMENTS * stored.itemsize
    for begin in range(span.begin, span.end, step):
        raw = np.frombuffer(data[begin : min(begin + step, span.end)].tobytes(), stored)
        if span.dtype == "BF16":
            yield (raw.astype(np.uint32) << 16).view(np.float32)
        else:
            yield raw.astype(np.float32)


def _equal(own: _Chunk, base: _Chunk) -> bool:
    (relative, least), (other, other_least) = _UNITS[own[1]], _UNITS[base[1]]
    sizes = np.maximum(np.abs(own[0]), np.abs(base[0]))
    limit = max(relative, other) * sizes + max(least, other_least)
    return bool((np.abs(own[0] - base[0]) <= limit).all())
