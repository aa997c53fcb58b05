"""Paged attention on a CPU as a work list of (query tile, KV split) items.

A tile is up to `rows` query tokens of one sequence; a split is `kv_split` consecutive positions,
cut at absolute positions. All items of one tile size run as one batched product; a tile with
several splits is merged by its log-sum-exp, split by split in order. Where no tile has more than
one split there is nothing to merge, and `softmax` does it all.

Invariant: a masked position contributes exact zeros, whatever its page holds (NaN included), and
a split in which a row sees nothing leaves that row's bits unchanged.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from kernels.interface import SequenceSpan

# Items whose K and V are gathered at once; bounds the scratch memory of a long prefill.
MAX_ITEMS = 512
LOWEST = -1e30


@dataclass(frozen=True, slots=True)
class TileSizes:
    """Query tokens per tile for single-token and longer spans, and positions per KV split.

    `merge_always`: a single split takes the same steps as several, so that its bits are the same.
    """

    decode_rows: int
    prefill_rows: int
    kv_split: int
    merge_always: bool = False


class PageReader:
    """Copies of the pages that a group reads, in memory that all layers of a step share."""

    def __init__(self, pages: Tensor) -> None:
        self._pages = pages
        self._rows = pages
        self._copies: tuple[Tensor, Tensor] | None = None

    def read(self, key_cache: Tensor, value_cache: Tensor) -> tuple[Tensor, Tensor]:
        """Caches [Hkv, P, S, D] -> K and V [Hkv, pages * S, D], valid until the next call."""
        num_kv_heads, num_pages, block_size, head_dim = key_cache.shape
        if self._copies is None:
            heads = torch.arange(num_kv_heads).unsqueeze(1)
            self._rows = (heads * num_pages + self._pages).flatten()
            shape = (self._rows.shape[0], block_size * head_dim)
            self._copies = (key_cache.new_empty(shape), value_cache.new_empty(shape))
        for cache, copy in zip((key_cache, value_cache), self._copies, strict=True):
            torch.index_select(cache.view(num_kv_heads * num_pages, -1), 0, self._rows, out=copy)
        keys, values = (copy.view(num_kv_heads, -1, head_dim) for copy in self._copies)
        return keys, values


@dataclass(frozen=True, slots=True)
class TileGroup:
    """Tiles of one size, most splits first, so that split j exists for the first `counts[j]`.

    Items are ordered by (split, tile). rows [tiles, R] indexes the batch (padding repeats a row);
    real [n] are the flat tile rows that are not padding, target [n] their batch rows. hidden
    [items, R, split] is true where a row may not look. past_context lists the positions, of
    items * split, that hold no token of the item's sequence. row_positions [items, R] and
    key_positions [items, split] say which a window hides besides.
    """

    rows: Tensor
    real: Tensor
    target: Tensor
    counts: tuple[int, ...]
    has_merge: bool
    pages: PageReader
    hidden: Tensor
    past_context: Tensor
    row_positions: Tensor
    key_positions: Tensor


@dataclass(frozen=True, slots=True)
class Scoring:
    """How a product of query and key becomes a score; `window` and `soft_cap`: 0 for none."""

    scale: float
    window: int
    soft_cap: float


@dataclass(frozen=True, slots=True)
class AttentionPlan:
    groups: tuple[TileGroup, ...]


@dataclass(frozen=True, slots=True)
class _Tile:
    span: SequenceSpan
    first: int  # offset of the tile's first token within the span
    num_rows: int
    num_splits: int


def build_plan(spans: Sequence[SequenceSpan], block_size: int, sizes: TileSizes) -> AttentionPlan:
    decodes = [span for span in spans if span.num_tokens == 1]
    chunks = [span for span in spans if span.num_tokens > 1]
    if sizes.decode_rows == sizes.prefill_rows:
        decodes, chunks = list(spans), []
    groups = []
    for group, rows in ((decodes, sizes.decode_rows), (chunks, sizes.prefill_rows)):
        tiles = _cut(group, rows, sizes.kv_split)
        groups += [_build_group(batch, rows, block_size, sizes) for batch in _batches(tiles)]
    return AttentionPlan(tuple(groups))


def _cut(spans: Sequence[SequenceSpan], rows: int, kv_split: int) -> list[_Tile]:
    tiles = []
    for span in spans:
        for first in range(0, span.num_tokens, rows):
            num_rows = min(rows, span.num_tokens - first)
            end = span.context_len - span.num_tokens + first + num_rows
            tiles.append(_Tile(span, first, num_rows, -(-end // kv_split)))
    return sorted(tiles, key=lambda tile: -tile.num_splits)


def _batches(tiles: list[_Tile]) -> Iterator[list[_Tile]]:
    batch: list[_Tile] = []
    num_items = 0
    for tile in tiles:
        if batch and num_items + tile.num_splits > MAX_ITEMS:
            yield batch
            batch, num_items = [], 0
        batch.append(tile)
        num_items += tile.num_splits
    if batch:
        yield batch


def _build_group(tiles: list[_Tile], rows: int, block_size: int, sizes: TileSizes) -> TileGroup:
    kv_split = sizes.kv_split
    counts = tuple(
        sum(tile.num_splits > split for tile in tiles) for split in range(tiles[0].num_splits)
    )
    items = [(tile, split) for split, count in enumerate(counts) for tile in tiles[:count]]
    batch_rows, positions, real = _tile_rows(tiles, rows)
    item_positions = np.concatenate([positions[:count] for count in counts])
    splits = np.repeat(np.arange(len(counts)), counts)
    key_positions = splits[:, None] * kv_split + np.arange(kv_split)
    hidden = key_positions[:, None, :] > item_positions[:, :, None]
    pages, valid = _item_blocks(items, block_size, kv_split)
    past_context = np.flatnonzero(np.arange(block_size) >= valid[:, None])
    return TileGroup(
        rows=torch.from_numpy(batch_rows),
        real=torch.from_numpy(real),
        target=torch.from_numpy(batch_rows.reshape(-1)[real]),
        counts=counts,
        has_merge=sizes.merge_always or len(counts) > 1,
        pages=PageReader(torch.from_numpy(pages)),
        hidden=torch.from_numpy(hidden),
        past_context=torch.from_numpy(past_context),
        row_positions=torch.from_numpy(item_positions),
        key_positions=torch.from_numpy(key_positions),
    )


def _tile_rows(tiles: Sequence[_Tile], rows: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Batch rows [tiles, R], positions [tiles, R], and which of the flat rows are real [n]."""
    first = np.array([tile.span.query_start + tile.first for tile in tiles])
    num_rows = np.array([tile.num_rows for tile in tiles])
    position = np.array(
        [tile.span.context_len - tile.span.num_tokens + tile.first for tile in tiles]
    )
    offset = np.minimum(np.arange(rows)[None, :], num_rows[:, None] - 1)
    real = np.flatnonzero((np.arange(rows)[None, :] < num_rows[:, None]).reshape(-1))
    return first[:, None] + offset, position[:, None] + offset, real


def _item_blocks(
    items: Sequence[tuple[_Tile, int]], block_size: int, kv_split: int
) -> tuple[np.ndarray, np.ndarray]:
    """Pages [items * blocks] to gather and how many positions of each are in the context.

    Blocks past the context repeat the sequence's first one, whose content is masked.
    """
    blocks = kv_split // block_size
    pages, valid = [], []
    for tile, split in items:
        table, context_len = tile.span.block_table, tile.span.context_len
        num_blocks = -(-context_len // block_size)
        begin = split * blocks
        own = list(table[begin : min(begin + blocks, num_blocks)])
        pages += own + [table[0]] * (blocks - len(own))
        starts = [(begin + i) * block_size for i in range(len(own))]
        valid += [min(block_size, context_len - start) for start in starts]
        valid += [min(block_size, context_len)] * (blocks - len(own))
    return np.array(pages, dtype=np.int64), np.array(valid, dtype=np.int64)


def paged_attention(
    query: Tensor,
    key_cache: Tensor,
    value_cache: Tensor,
    plan: AttentionPlan,
    scale: float,
    *,
    window: int = 0,
    soft_cap: float = 0.0,
) -> Tensor:
    out = torch.empty_like(query)
    scoring = Scoring(scale, window, soft_cap)
    for group in plan.groups:
        _attend(query, key_cache, value_cache, group, scoring, out)
    return out


def _attend(
    query: Tensor,
    key_cache: Tensor,
    value_cache: Tensor,
    group: TileGroup,
    scoring: Scoring,
    out: Tensor,
) -> None:
    num_kv_heads, _, _, head_dim = key_cache.shape
    num_tiles, rows = group.rows.shape
    heads = query.shape[1] // num_kv_heads
    num_items, _, kv_split = group.hidden.shape

    keys, values = group.pages.read(key_cache, value_cache)
    # NOTE: a weight of 0 times a NaN that a recycled page holds would be NaN.
    values.index_fill_(1, group.past_context, 0.0)
    keys = keys.view(num_kv_heads, num_items, kv_split, head_dim)
    values = values.view(num_kv_heads, num_items, kv_split, head_dim)
    hidden = group.hidden
    if scoring.window:
        hidden = _narrow(group, scoring.window, values)

    # [tiles, R, Hkv, G, D] -> [Hkv, tiles, R * G, D], then one copy of a tile for each split.
    tiles = query.index_select(0, group.rows.view(-1))
    tiles = tiles.view(num_tiles, rows, num_kv_heads, heads, head_dim).permute(2, 0, 1, 3, 4)
    tiles = tiles.reshape(num_kv_heads, num_tiles, rows * heads, head_dim)
    if len(group.counts) > 1:
        tiles = torch.cat([tiles[:, :count] for count in group.counts], dim=1)

    scores = torch.matmul(tiles, keys.transpose(-1, -2)).float().mul_(scoring.scale)
    scores = scores.view(num_kv_heads, num_items, rows, heads, kv_split)
    if scoring.soft_cap:
        scores.div_(scoring.soft_cap).tanh_().mul_(scoring.soft_cap)
    scores.masked_fill_(hidden[None, :, :, None, :], -torch.inf)
    if not group.has_merge:
        merged = _weigh(torch.softmax(scores, dim=-1), values)
    else:
        highest = scores.amax(dim=-1, keepdim=True).clamp_min_(LOWEST)
        weights = scores.sub_(highest).exp_()
        total = weights.sum(dim=-1, keepdim=True)
        merged = _merge(_weigh(weights, values), highest, total, group.counts)
    merged = merged.permute(1, 2, 0, 3, 4).reshape(num_tiles * rows, -1, head_dim)
    out[group.target] = merged[group.real].to(out.dtype)


def _narrow(group: TileGroup, window: int, values: Tensor) -> Tensor:
    """`group.hidden` with what the window hides; values [Hkv, items, split, D] change in place.

    What no row of a tile sees becomes 0: pages before its first row's window may be recycled.
    """
    keys, first_visible = group.key_positions, group.row_positions - (window - 1)
    is_unseen = (keys < first_visible[:, :1]) | (keys > group.row_positions[:, -1:])
    values.masked_fill_(is_unseen[None, :, :, None], 0.0)
    return group.hidden | (keys[:, None, :] < first_visible[:, :, None])


def _weigh(weights: Tensor, values: Tensor) -> Tensor:
    """weights [Hkv, items, R, G, split], values [Hkv, items, split, D] -> [..., R, G, D]."""
    num_kv_heads, num_items, rows, heads, kv_split = weights.shape
    flat = weights.view(num_kv_heads, num_items, rows * heads, kv_split).to(values.dtype)
    return torch.matmul(flat, values).float().view(num_kv_heads, num_items, rows, heads, -1)


def _merge(partial: Tensor, highest: Tensor, total: Tensor, counts: tuple[int, ...]) -> Tensor:
    """Combine splits in order; all [Hkv, items, R, G, ...] -> [Hkv, tiles, R, G, D]."""
    num_tiles = counts[0]
    out = partial[:, :num_tiles]
    top, mass = highest[:, :num_tiles], total[:, :num_tiles]
    begin = num_tiles
    for count in counts[1:]:
        here = slice(begin, begin + count)
        new_top = torch.maximum(top[:, :count], highest[:, here])
        old_scale = (top[:, :count] - new_top).exp()
        new_scale = (highest[:, here] - new_top).exp()
        out[:, :count] = out[:, :count] * old_scale + partial[:, here] * new_scale
        mass[:, :count] = mass[:, :count] * old_scale + total[:, here] * new_scale
        top[:, :count] = new_top
        begin += count
    return out / mass
