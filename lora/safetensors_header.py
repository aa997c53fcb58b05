"""The header of a safetensors file, read strictly: bounds before reads, nothing taken on trust."""

from __future__ import annotations

from dataclasses import dataclass


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
