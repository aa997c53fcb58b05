"""Whether what a file stores twice, because it is tied, holds the same numbers twice.

PEFT reads both into one storage, where the head's, read last, replace the embedding's; each would
be served with its own. NumPy only, memory-mapped and in chunks. Blocking: call it from a thread or
a worker. Invariant: numbers are compared as float32, which every stored type is exact in.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from lora.findings import Findings
from lora.safetensors_header import TensorSpan
from lora.tying import TiedPair

_CHUNK_ELEMENTS = 1 << 20
_STORED = {"F32": "<f4", "F16": "<f2", "BF16": "<u2"}


def check_tied(data: NDArray[np.uint8], pairs: tuple[TiedPair, ...], findings: Findings) -> None:
    """`data`: the whole file. Tensors that lie within it."""
    for pair in pairs:
        if not _is_same(data, pair):
            findings.refuse(
                "tensor_duplicate",
                "ensure_weight_tying shares it with the embedding, which holds other numbers: "
                f"{pair.embedding.name}",
                param=pair.head.name,
                hint="save it again from a model whose head is still tied",
            )


def _is_same(data: NDArray[np.uint8], pair: TiedPair) -> bool:
    head, embedding = _matrix(data, pair.head), _matrix(data, pair.embedding)
    if pair.is_transposed:
        embedding = embedding.T
    num_rows, num_columns = head.shape
    step = max(1, _CHUNK_ELEMENTS // num_columns)
    return all(
        np.array_equal(
            _numbers(head[begin : begin + step], pair.head.dtype),
            _numbers(embedding[begin : begin + step], pair.embedding.dtype),
        )
        for begin in range(0, num_rows, step)
    )


def _matrix(data: NDArray[np.uint8], span: TensorSpan) -> NDArray[Any]:
    """The tensor as it is stored, at whatever address; not a copy."""
    return np.ndarray(span.shape, np.dtype(_STORED[span.dtype]), data, span.begin)


def _numbers(stored: NDArray[Any], dtype: str) -> NDArray[np.float32]:
    if dtype == "BF16":
        return (stored.astype(np.uint32) << 16).view(np.float32)
    return stored.astype(np.float32)
