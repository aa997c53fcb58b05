"""How kernels find an adapter in the pages of the pool: the words of its table. Torch-free.

An adapter on a GPU is bytes in pages plus one int32 table. The bytes are *vectors*: a row of A, a
column of B, a scale, a bias, a run of matrix rows; each starts at a multiple of `UNIT_BYTES` and
straddles no page. The table begins with a header of `HEADER_WORDS` words for each (layer, site)
of the base, adapted or not; then come the vectors' places in the pool, in units of `UNIT_BYTES`
(128, so that 31 bits reach 256 GiB). Knows nothing of models or files; `lora.layout` writes what
`kernels.gpu` reads.

Invariants: word 0 is never the place of a list, so that 0 means *none*; vector r of side A is
`table[table[A] + r]`; columns `[c * piece_columns, (c + 1) * piece_columns)` of vector r of side B
lie at `table[table[B] + r * num_pieces + c]`, counted within r's part of the site.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

UNIT_BYTES = 128
ROW_UNIT_BYTES = 16
"""What the row stride of a matrix is counted in."""

MAX_PARTS = 3
HEADER_WORDS = 8
A = 0
"""Word of A's list. At the embedding: word of A.T's matrix record, a row per token id."""
B = 1
"""Word of B's list."""
RANKS = 2
"""Ranks of the first, of the first two, of all parts: three words."""
SCALE = 5
"""Word of the list of the output scale's pieces, float32."""
BIAS = 6
"""Word of the list of the bias's pieces, float32."""
REPLACED = 7
"""Word of the record of the matrix whose rows stand for the base's."""

MATRIX_WORDS = 6
"""A matrix record. Row i lies in run i // ROWS_PER_RUN, at i % ROWS_PER_RUN times the stride."""
NUM_ROWS = 0
RUNS = 1
"""Word of the list of runs."""
ROWS_PER_RUN = 2
ROW_STRIDE = 3
"""In units of `ROW_UNIT_BYTES`."""
IDS = 4
"""Word of the ascending ids that the rows are for; 0: row i is for id i."""
ROW_BIAS = 5
"""Word of the list of pieces of a bias, float32, one number a row."""

_PIECE_BLOCK = 256
_PIECES_PER_PAGE = 16

SiteKey = tuple[int, str]
"""(layer, site name); layer -1 for the embedding and the language model head."""


@dataclass(frozen=True, slots=True)
class SiteShape:
    """One site of the base: the place of its header, and the shapes of its linears.

    `widths`: output features of its parts, at most `MAX_PARTS`, which stand side by side.
    """

    index: int
    num_in: int
    widths: tuple[int, ...]


@dataclass(frozen=True, slots=True, eq=False)
class PageFormat:
    """What all adapters of one engine share. `itemsize`: bytes of the compute dtype."""

    shapes: Mapping[SiteKey, SiteShape]
    page_bytes: int
    itemsize: int

    @property
    def run_bytes(self) -> int:
        """What one vector holds at most, where it need not hold more: little of a page is lost."""
        return max(self.page_bytes // _PIECES_PER_PAGE, _PIECE_BLOCK * 4)

    @property
    def piece_columns(self) -> int:
        """Columns of an output vector that lie together; whole blocks of every kernel."""
        return self.run_bytes // 4 // _PIECE_BLOCK * _PIECE_BLOCK


@dataclass(frozen=True, slots=True, eq=False)
class AdapterUse:
    """What a launch must know of an adapter on the host: by site name, over all layers.

    max_ranks: the largest sum of its parts' ranks. scaled, biased: whether it has the form.
    max_replaced: the most rows that it replaces.
    """

    max_ranks: Mapping[str, int]
    scaled: frozenset[str]
    biased: frozenset[str]
    max_replaced: Mapping[str, int]
