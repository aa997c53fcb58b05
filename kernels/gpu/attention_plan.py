"""The work list of paged attention: which program attends which queries to which keys.

Pure numpy; knows nothing of tensors, devices, heads' contents or requests. A *tile* is a few
consecutive query tokens of one sequence; an *item* is a tile and a range of KV positions, and one
program per item and KV head computes it. How long a range may be is chosen for the whole batch, so
that a long sequence beside many short ones does not finish last.

Invariants: every query token meets every KV position up to its own exactly once; ranges begin at
multiples of `GRANULE`; a tile that was not split has `partial_row` -1 and needs no merge.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

IntArray = NDArray[np.int32]

GRANULE = 64
"""KV ranges are cut at its multiples; the kernels' KV tiles divide it."""
# What starting a program, and merging parts in a second launch, cost: in KV positions that a
# program could have read in that time. Estimates until a GPU has been measured.
PROGRAM_COST = 64
MERGE_COST = 64

ITEM_FIELDS = 8
"""sequence, first query row, rows, position of the first row, kv begin, kv end, partial row, 0.

Eight int32, so that an item is one 32-byte sector. Partial row: where the item's rows begin in the
workspace, -1 where they go to the output."""
MERGE_FIELDS = 4
"""query row, its row in the first part's partials, rows between two parts, number of parts."""
DECODE, PREFILL, MERGES = 0, 1, 2
"""Where `WorkList.counts` says how many of each list are real."""


@dataclass(frozen=True, slots=True)
class Tiles:
    """Query tokens in a tile: for sequences with at most `decode` tokens in the step, and longer.

    decode 0: every sequence takes the prefill form.
    """

    decode: int
    prefill: int


@dataclass(frozen=True, slots=True)
class SplitPolicy:
    """How far KV is cut up.

    num_programs: as many as saturate the device's memory, over all KV heads.
    fixed_length: 0, or ranges of exactly this many positions from position 0 on, whatever the
    batch (a multiple of GRANULE): a token's parts then depend on its position alone.
    """

    num_programs: int
    num_kv_heads: int
    fixed_length: int = 0

    def __post_init__(self) -> None:
        assert self.fixed_length % GRANULE == 0, "KV ranges begin at multiples of GRANULE"

    @property
    def max_extra_items(self) -> int:
        """By how much cutting may lengthen a list: at most two programs for each that fits."""
        return 2 * -(-self.num_programs // self.num_kv_heads)


@dataclass(frozen=True, slots=True)
class Capacity:
    """Upper bounds of a list's parts, for grids and workspaces that must not change size."""

    num_items: int
    num_merges: int
    num_partial_rows: int


@dataclass(frozen=True, slots=True)
class WorkList:
    """decode, prefill [*, ITEM_FIELDS], merges [*, MERGE_FIELDS], counts [4]; all int32.

    The lists may be padded with anything: kernels read `counts`.
    """

    decode: IntArray
    prefill: IntArray
    merges: IntArray
    counts: IntArray
    num_partial_rows: int


def plan_work(
    query_start: IntArray,
    num_tokens: IntArray,
    context_len: IntArray,
    tiles: Tiles,
    policy: SplitPolicy,
) -> WorkList:
    """Spans [N] -> the step's work; `sequence` of an item is an index into them."""
    spans = np.stack([query_start, num_tokens, context_len]).astype(np.int64)
    is_decode = spans[1] <= tiles.decode
    decode, merges, num_decode_rows = _plan_list(
        spans, np.flatnonzero(is_decode), tiles.decode, policy, 0
    )
    prefill, more_merges, num_partial_rows = _plan_list(
        spans, np.flatnonzero(~is_decode), tiles.prefill, policy, num_decode_rows
    )
    merges = np.concatenate([merges, more_merges])
    counts = np.array([len(decode), len(prefill), len(merges), 0], dtype=np.int32)
    return WorkList(decode, prefill, merges, counts, num_partial_rows)


def decode_capacity(num_sequences: int, max_context: int, policy: SplitPolicy) -> Capacity:
    """What `plan_work` can need at most for `num_sequences` sequences of one token each."""
    if policy.fixed_length:
        num_items = num_sequences * -(-max_context // policy.fixed_length)
        return Capacity(num_items, num_sequences, num_items)
    extra = policy.max_extra_items
    # A tile cut into k >= 2 parts adds k - 1 items, at least half of its parts.
    return Capacity(num_sequences + extra, min(num_sequences, extra), 2 * extra)


def block_table_rows(block_tables: Sequence[Sequence[int]]) -> IntArray:
    """[N, longest], padded with -1, which no kernel may look up."""
    longest = max((len(table) for table in block_tables), default=0)
    # A multiple of 16, so that the row stride is one; at least one, so that it has an address.
    rows = np.full((len(block_tables), max(-(-longest // 16) * 16, 16)), -1, dtype=np.int32)
    for row, table in zip(rows, block_tables, strict=True):
        row[: len(table)] = table
    return rows


def _plan_list(
    spans: NDArray[np.int64],
    members: NDArray[np.int64],
    tile: int,
    policy: SplitPolicy,
    first_partial_row: int,
) -> tuple[IntArray, IntArray, int]:
    """Items and merges of the spans `members`; the first free partial row after them."""
    if not len(members):
        items = np.zeros((0, ITEM_FIELDS), dtype=np.int32)
        return items, np.zeros((0, MERGE_FIELDS), dtype=np.int32), first_partial_row
    sequence, row, num_rows, position = _cut_tiles(spans, members, tile)
    kv_end = position + num_rows
    num_parts = _count_parts(kv_end, policy)

    of, part = _expand(num_parts)
    begin, end = _cut_parts(kv_end[of], part, num_parts[of], policy)
    is_split = num_parts > 1
    partial_rows = np.where(is_split, num_parts * num_rows, 0)
    first_partial = first_partial_row + np.cumsum(partial_rows) - partial_rows
    partial = np.where(is_split[of], first_partial[of] + part * num_rows[of], -1)
    columns = [sequence[of], row[of], num_rows[of], position[of], begin, end, partial]
    items = np.stack([*columns, np.zeros_like(begin)], axis=1).astype(np.int32)
    # Longest first: what starts last is short, and the device finishes together.
    items = items[np.argsort(begin - end, kind="stable")]

    split = np.flatnonzero(is_split)
    of, offset = _expand(num_rows[split])
    of = split[of]
    merges = np.stack([row[of] + offset, first_partial[of] + offset, num_rows[of], num_parts[of]])
    last_row = first_partial_row + int(partial_rows.sum())
    return items, np.ascontiguousarray(merges.T.astype(np.int32)), last_row


def _cut_tiles(
    spans: NDArray[np.int64], members: NDArray[np.int64], tile: int
) -> tuple[NDArray[np.int64], ...]:
    """sequence, first query row, rows and first position of every tile."""
    query_start, num_tokens, context_len = spans[:, members]
    of, index = _expand(-(-num_tokens // tile))
    first = index * tile
    num_rows = np.minimum(tile, num_tokens[of] - first)
    position = (context_len - num_tokens)[of] + first
    return members[of], query_start[of] + first, num_rows, position


def _expand(counts: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """[2, 3] -> owner [0, 0, 1, 1, 1] and index within it [0, 1, 0, 1, 2]."""
    of = np.repeat(np.arange(len(counts)), counts)
    index = np.arange(len(of)) - np.repeat(np.cumsum(counts) - counts, counts)
    return of, index


def _cut_parts(
    kv_end: NDArray[np.int64],
    part: NDArray[np.int64],
    num_parts: NDArray[np.int64],
    policy: SplitPolicy,
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """KV range of each part: equal ones, or the fixed ones."""
    if policy.fixed_length:
        begin, end = part * policy.fixed_length, (part + 1) * policy.fixed_length
    else:
        granules = -(-kv_end // GRANULE)
        begin = part * granules // num_parts * GRANULE
        end = (part + 1) * granules // num_parts * GRANULE
    return begin, np.minimum(end, kv_end)


def _count_parts(kv_end: NDArray[np.int64], policy: SplitPolicy) -> NDArray[np.int64]:
    """In how many parts to cut each tile."""
    if policy.fixed_length:
        return -(-kv_end // policy.fixed_length)
    granules = -(-kv_end // GRANULE)
    best = np.ones_like(granules)
    best_time = _predict_time(granules, best, policy)
    for limit in _limits(int(granules.max())):
        num_parts = -(-granules // limit)
        if num_parts.sum() > len(granules) + policy.max_extra_items:
            break
        time = _predict_time(granules, num_parts, policy) + MERGE_COST
        if time < best_time:
            best, best_time = num_parts, time
    return best


def _limits(longest: int) -> list[int]:
    """Lengths to try, in granules, below `longest` and falling: 3/4, 1/2, 3/8, 1/4, ... of it."""
    limits, numerator, denominator = [], 3, 4
    while longest * numerator > denominator:
        limits.append(-(-longest * numerator // denominator))
        numerator, denominator = (2, denominator) if numerator == 3 else (3, 2 * denominator)
    return sorted({limit for limit in limits if limit < longest}, reverse=True)


def _predict_time(
    granules: NDArray[np.int64], num_parts: NDArray[np.int64], policy: SplitPolicy
) -> float:
    """Until the last program ends, in positions read by one program alone.

    All programs run at once and share the memory's speed evenly, but none is faster than it would
    be alone: with n at work each runs at min(1, num_programs / n).
    """
    longest_part = -(-granules // num_parts)
    cost = np.repeat(longest_part * GRANULE + PROGRAM_COST, num_parts)
    cost.sort()
    at_work = np.arange(len(cost), 0, -1) * policy.num_kv_heads
    slowdown = np.maximum(1.0, at_work / policy.num_programs)
    return float(np.dot(np.diff(cost, prepend=0), slowdown))
