"""Places vectors in pages one after another and writes the words by which they are found.

Knows nothing of sites' meaning: `lora.layout` says what to place in which order. Invariant: every
vector placed lies within one page, at a multiple of `UNIT_BYTES`, and no two overlap.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from kernels import adapter_table as words
from kernels.adapter_table import UNIT_BYTES, PageFormat, SiteKey

FLOAT_BYTES = 4
FLOAT_SIDES = frozenset({"scale", "bias", "row_bias"})
"""Kept in float32, whatever the compute dtype."""


@dataclass(frozen=True, slots=True, eq=False)
class VectorGroup:
    """Vectors of one source matrix: `places[i]` (bytes from the start of page 0) holds rows
    `[i * rows_per_vector, (i + 1) * rows_per_vector)`, `row_stride` bytes apart.

    Rows are `columns` of the source's rows, `itemsize` bytes a number. `part`: which B, counted
    among those that the adapter has.
    """

    key: SiteKey
    side: str
    part: int
    num_rows: int
    columns: tuple[int, int]
    itemsize: int
    rows_per_vector: int
    row_stride: int
    places: NDArray[np.int64]

    @property
    def num_bytes(self) -> int:
        begin, end = self.columns
        return self.num_rows * (end - begin) * self.itemsize


class LayoutBuilder:
    """Grows a layout: `table()` and `place_words()` are whole when all is placed."""

    def __init__(self, page_format: PageFormat) -> None:
        assert page_format.page_bytes % UNIT_BYTES == 0
        self.groups: list[VectorGroup] = []
        self._format = page_format
        self._next = 0
        self.header = np.zeros((len(page_format.shapes), words.HEADER_WORDS), np.int64)
        """One row a site, by its index; the caller writes it."""
        self._lists = [self.header.reshape(-1)]
        self._num_words = self.header.size
        self._place_words: list[NDArray[np.int64]] = []

    @property
    def num_pages(self) -> int:
        return max(1, -(-self._next // self._format.page_bytes))

    def table(self) -> NDArray[np.int32]:
        return np.concatenate(self._lists).astype(np.int32)

    def place_words(self) -> NDArray[np.int64]:
        return np.concatenate([np.zeros(0, np.int64), *self._place_words])

    def place_vectors(self, key: SiteKey, side: str, count: int, length: int) -> int:
        """`count` vectors of `length` numbers; the word of the list of their places."""
        places = self._place_group(key, side, 0, count, (0, length), self._format.itemsize)
        return self._add_places(places)

    def place_columns(self, key: SiteKey, widths: Sequence[int], ranks: Sequence[int]) -> int:
        """The columns of each part's B, in pieces; the word of the list [rank][piece]."""
        piece = self._format.piece_columns
        num_pieces = -(-max(widths) // piece)
        places = np.zeros((sum(ranks), num_pieces), np.int64)
        used = np.zeros(places.shape, bool)
        part = rank_begin = 0
        for width, rank in zip(widths, ranks, strict=True):
            rows = slice(rank_begin, rank_begin + rank)
            for index, begin in enumerate(range(0, width, piece)):
                columns = (begin, min(begin + piece, width))
                places[rows, index] = self._place_group(
                    key, "b", part, rank, columns, self._format.itemsize
                )
                used[rows, index] = True
            rank_begin += rank
            part += rank > 0
        return self._add_places(places.ravel(), used.ravel())

    def place_floats(self, key: SiteKey, side: str, length: int) -> int:
        """One float32 vector, in pieces; the word of the list of their places."""
        piece = self._format.piece_columns
        places = [
            self._place_group(key, side, 0, 1, (begin, min(begin + piece, length)), FLOAT_BYTES)
            for begin in range(0, length, piece)
        ]
        return self._add_places(np.concatenate(places))

    def place_matrix(
        self,
        key: SiteKey,
        side: str,
        num_rows: int,
        length: int,
        ids: NDArray[np.int32] | None = None,
        *,
        has_bias: bool = False,
    ) -> int:
        """A matrix row by row, in runs, and a bias a row; the word of its record."""
        stride = round_up(length * self._format.itemsize, words.ROW_UNIT_BYTES)
        rows_per_run = max(1, self._format.run_bytes // stride)
        places = self._place_group(
            key, side, 0, num_rows, (0, length), self._format.itemsize, rows_per_run, stride
        )
        record = np.zeros(words.MATRIX_WORDS, np.int64)
        word = self._add_words(record)
        record[words.NUM_ROWS] = num_rows
        record[words.RUNS] = self._add_places(places)
        record[words.ROWS_PER_RUN] = rows_per_run
        record[words.ROW_STRIDE] = stride // words.ROW_UNIT_BYTES
        if ids is not None:
            assert ids.size == num_rows and bool(np.all(np.diff(ids) > 0))
            record[words.IDS] = self._add_words(ids.astype(np.int64))
        if has_bias:
            record[words.ROW_BIAS] = self.place_floats(key, "row_bias", num_rows)
        return word

    def _place_group(
        self,
        key: SiteKey,
        side: str,
        part: int,
        num_rows: int,
        columns: tuple[int, int],
        itemsize: int,
        rows_per_vector: int = 1,
        row_stride: int = 0,
    ) -> NDArray[np.int64]:
        row_stride = row_stride or (columns[1] - columns[0]) * itemsize
        whole, left = divmod(num_rows, rows_per_vector)
        places = self._place(whole, rows_per_vector * row_stride)
        if left:
            places = np.concatenate([places, self._place(1, left * row_stride)])
        if num_rows:
            rows = (num_rows, columns, itemsize, rows_per_vector, row_stride)
            self.groups.append(VectorGroup(key, side, part, *rows, places))
        return places

    def _place(self, count: int, num_bytes: int) -> NDArray[np.int64]:
        """Places, in bytes, of `count` vectors of `num_bytes`, page after page."""
        page_bytes = self._format.page_bytes
        if num_bytes > page_bytes:
            raise ValueError(f"a vector of {num_bytes} bytes does not fit a page of {page_bytes}")
        stride = round_up(num_bytes, UNIT_BYTES)
        places: list[NDArray[np.int64]] = [np.zeros(0, np.int64)]
        while count:
            left = page_bytes - self._next % page_bytes
            fitting = min(count, left // stride)
            if fitting == 0:
                self._next += left
                continue
            places.append(self._next + stride * np.arange(fitting, dtype=np.int64))
            self._next += stride * fitting
            count -= fitting
        return np.concatenate(places)

    def _add_places(self, places: NDArray[np.int64], used: NDArray[np.bool_] | None = None) -> int:
        word = self._add_words(places // UNIT_BYTES)
        index = np.arange(word, word + places.size, dtype=np.int64)
        self._place_words.append(index if used is None else index[used])
        return word

    def _add_words(self, values: NDArray[np.int64]) -> int:
        word = self._num_words
        self._lists.append(values)
        self._num_words += values.size
        return word


def round_up(value: int, multiple: int) -> int:
    return -(-value // multiple) * multiple
