"""Which rows of a step belong to which adapter: rows sorted by adapter, as segments.

Knows nothing of models or kernels' ways. Invariant: segments are disjoint, in row order, and
rows outside them belong to the base.
"""

from __future__ import annotations

from collections.abc import Iterable

from kernels.interface import LoraSegment
from lora.weights import LoraWeights


def group_rows(owners: Iterable[tuple[LoraWeights | None, int]]) -> list[LoraSegment]:
    """`(weights or None for the base, number of rows)` in batch order -> merged neighbours.

    Empty where every row is the base's.
    """
    segments: list[LoraSegment] = []
    start = 0
    for weights, num_rows in owners:
        end = start + num_rows
        if weights is not None:
            if segments and segments[-1].end == start and segments[-1].weights is weights:
                start = segments.pop().start
            segments.append(LoraSegment(start, end, weights))
        start = end
    return segments
