"""Batches over a poisoned pool of all-layer pages, and attention over them in float64.

Whatever no kernel may read is NaN: other layers' blocks, pages of nobody, page tails, pages before
a window, the neighbours of a row in its tensor. Block tables hold -1 past their end.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from kernels.gpu.attention import AttentionPlan, AttentionWork, HeadShape, place_work
from kernels.gpu.attention_plan import (
    SplitPolicy,
    Tiles,
    WorkList,
    block_table_rows,
    plan_work,
)
from kernels.interface import SequenceSpan

TOLERANCE = {torch.float32: 1e-5, torch.float16: 2e-3, torch.bfloat16: 5e-3}
NUM_LAYERS, LAYER = 2, 1


@dataclass(frozen=True)
class PagedBatch:
    """query [T, Hq, D] and caches [Hkv, P, S, D] are views; rows 0 and T - 1 are no span's."""

    query: Tensor
    key_cache: Tensor
    value_cache: Tensor
    spans: list[SequenceSpan]

    @property
    def shape(self) -> HeadShape:
        return HeadShape(self.query.shape[1], self.key_cache.shape[0], self.query.element_size())

    def exact(self, scale: float, window: int = 0, soft_cap: float = 0.0) -> Tensor:
        """[T, Hq, D] float64, NaN where a row is no span's."""
        out = torch.full(self.query.shape, torch.nan, dtype=torch.float64)
        group = self.shape.group
        for span in self.spans:
            end, first = span.context_len, span.context_len - span.num_tokens
            rows = slice(span.query_start, span.query_start + span.num_tokens)
            begin = max(0, first - window + 1) if window else 0
            keys, values = (
                _positions(cache, span.block_table, begin, end).repeat_interleave(group, dim=0)
                for cache in (self.key_cache, self.value_cache)
            )
            scores = torch.einsum("thd,hkd->htk", self.query[rows].double(), keys) * scale
            if soft_cap:
                scores = soft_cap * torch.tanh(scores / soft_cap)
            position = torch.arange(first, end)[:, None]
            key_position = torch.arange(begin, end)[None, :]
            hidden = key_position > position
            if window:
                hidden |= key_position <= position - window
            weights = scores.masked_fill(hidden, -torch.inf).softmax(dim=-1)
            out[rows] = torch.einsum("htk,hkd->thd", weights, values)
        return out


def _positions(cache: Tensor, table: Sequence[int], begin: int, end: int) -> Tensor:
    """Positions [begin, end) of a sequence: [Hkv, n, D] float64."""
    block_size = cache.shape[2]
    positions = torch.arange(begin, end)
    pages = torch.tensor(list(table))[positions // block_size]
    return cache[:, pages, positions % block_size].double()


def paged_batch(
    lengths: Sequence[tuple[int, int]],
    *,
    num_kv_heads: int = 2,
    group: int = 3,
    head_dim: int = 64,
    block_size: int = 16,
    dtype: torch.dtype = torch.float32,
    window: int = 0,
    seed: int = 0,
) -> PagedBatch:
    """`lengths`: (tokens in this step, tokens before it) of each sequence."""
    generator = torch.Generator().manual_seed(seed)

    def noise(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator).to(dtype)

    num_blocks = [-(-(num_tokens + past) // block_size) for num_tokens, past in lengths]
    free = list(range(sum(num_blocks) + 2))
    random.Random(seed).shuffle(free)
    key_cache, value_cache = poisoned_caches(len(free), num_kv_heads, block_size, head_dim, dtype)
    spans, query_start = [], 1
    for (num_tokens, past), count in zip(lengths, num_blocks, strict=True):
        table = [free.pop() for _ in range(count)]
        spans.append(SequenceSpan(query_start, num_tokens, num_tokens + past, table))
        first_visible = max(0, past - window + 1) if window else 0
        positions = torch.arange(first_visible // block_size * block_size, num_tokens + past)
        pages = torch.tensor(table)[positions // block_size]
        for cache in (key_cache, value_cache):
            cache[:, pages, positions % block_size] = noise(num_kv_heads, len(positions), head_dim)
        query_start += num_tokens
    num_heads = num_kv_heads * group
    fused = torch.full((query_start + 1, num_heads + 2 * num_kv_heads, head_dim), torch.nan)
    query = fused.to(dtype)[:, :num_heads]
    query[1:query_start] = noise(query_start - 1, num_heads, head_dim)
    return PagedBatch(query, key_cache, value_cache, spans)


def poisoned_caches(
    num_pages: int, num_kv_heads: int, block_size: int, head_dim: int, dtype: torch.dtype
) -> tuple[Tensor, Tensor]:
    """K and V [Hkv, P, S, D] of one layer of all-layer pages, NaN throughout."""
    page = (NUM_LAYERS, 2, num_kv_heads, block_size, head_dim)
    pool = torch.full((num_pages, *page), torch.nan, dtype=dtype)
    return pool[:, LAYER, 0].transpose(0, 1), pool[:, LAYER, 1].transpose(0, 1)


def cut_every(num_positions: int, num_kv_heads: int) -> SplitPolicy:
    """As much splitting and merging as there can be."""
    return SplitPolicy(1, num_kv_heads, fixed_length=num_positions)


def span_work(spans: Sequence[SequenceSpan], tiles: Tiles, policy: SplitPolicy) -> WorkList:
    columns = [(span.query_start, span.num_tokens, span.context_len) for span in spans]
    query_start, num_tokens, context_len = np.array(columns, dtype=np.int32).T
    return plan_work(query_start, num_tokens, context_len, tiles, policy)


def padded_plan(batch: PagedBatch, work: WorkList, padding: int = 3) -> AttentionPlan:
    """A plan as a captured graph has it: lists longer than what is real, the rest nonsense."""
    table = block_table_rows([span.block_table for span in batch.spans])
    placed = place_work(work, table, torch.device("cpu"))

    def pad(items: Tensor) -> Tensor:
        return torch.cat([items, items.new_full((padding, items.shape[1]), 1 << 30)])

    padded = AttentionWork(
        decode=pad(placed.decode),
        prefill=pad(placed.prefill),
        merges=pad(placed.merges),
        counts=placed.counts,
        block_table=placed.block_table,
        num_partial_rows=placed.num_partial_rows + padding,
    )
    return AttentionPlan.from_views(padded, batch.shape)


def relative_error(got: Tensor, exact: Tensor) -> float:
    """The largest error over the largest value; NaN where one is missing."""
    real = ~exact.isnan()
    return float((got.double() - exact)[real].abs().max() / exact[real].abs().max())
