"""Which rows of a step belong to which adapter: rows sorted by adapter, as segments.

Knows nothing of models or kernels' ways. Invariant: segments are disjoint, in row order, and
rows outside them belong to the base.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from kernels.interface import LoraSegment
from lora.weights import LoraWeights


@dataclass(frozen=True, slots=True)
class AdapterRows:
    """Rows `[start, end)` of the batch run with `weights`."""

    start: int
    end: int
    weights: LoraWeights


@dataclass(frozen=True, slots=True)
class LoraBatch:
    """One step's assignment of rows to adapters."""

    rows: Sequence[AdapterRows]

    def segments(self, layer: int, site: str) -> list[LoraSegment]:
        """What to add at one site of one layer; adapters that leave it alone are absent."""
        return [
            LoraSegment(rows.start, rows.end, weights)
            for rows in self.rows
            if (weights := rows.weights.sites.get((layer, site))) is not None
        ]


def group_rows(owners: Iterable[tuple[LoraWeights | None, int]]) -> LoraBatch | None:
    """`(weights or None for the base, number of rows)` in batch order -> merged neighbours.

    None where every row is the base's, so that such a batch pays nothing.
    """
    rows: list[AdapterRows] = []
    start = 0
    for weights, num_rows in owners:
        end = start + num_rows
        if weights is not None:
            if rows and rows[-1].end == start and rows[-1].weights is weights:
                start = rows.pop().start
            rows.append(AdapterRows(start, end, weights))
        start = end
    return LoraBatch(rows) if rows else None
