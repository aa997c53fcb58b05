"""Tensors read from an open file by where a header says that they lie.

Invariant: a file that is shorter than its header says is an error, never a tensor.
"""

from __future__ import annotations

import os

import torch
from torch import Tensor

from lora.safetensors_header import TensorSpan

DTYPES = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}


class SpanReader:
    """Reads by absolute offset; never trusts that the file still has its length."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    def read(self, span: TensorSpan) -> Tensor:
        """float32, of the span's shape. Raises OSError where the file ends before it."""
        data = bytearray(span.end - span.begin)
        filled = 0
        while filled < len(data):  # one call reads at most 2 GiB
            num_read = os.preadv(self._descriptor, [memoryview(data)[filled:]], span.begin + filled)
            if num_read == 0:
                raise OSError(f"tensor {span.name} is cut short")
            filled += num_read
        return torch.frombuffer(data, dtype=DTYPES[span.dtype]).view(span.shape).float()
