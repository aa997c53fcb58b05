"""Which rows of a step belong to which adapter: rows sorted by adapter, as segments.

Knows nothing of models or kernels' ways. Invariant: segments are disjoint, in row order, and
rows outside them belong to the base.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from kernels.interface import LoraSegment


def group_rows(owners: Iterable[tuple[Any | None, int]]) -> list[LoraSegment]:
    """`(adapter as kernels read it, None for the base; number of rows)`, neighbours merged.

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
