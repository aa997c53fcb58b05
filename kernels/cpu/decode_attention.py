"""Attention of decoding sequences: a loop over each one's pages, in place.

Reading one query token's pages where they lie is less work than gathering them for a batched
product: on two cores half the time, for 1 to 32 sequences of 32 to 1,024 tokens. Longer spans and
other dtypes go to `kernels.cpu.attention`. Invariant: what lies in a page past the context, or
before the window, is never read.
"""
# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import cached_property

import numpy as np
import torch
from numba import types
from torch import Tensor

from kernels.cpu import attention
from kernels.cpu.attention import AttentionPlan
from kernels.cpu.compiled import Int64Matrix, compiled
from kernels.interface import SequenceSpan

ROW, CONTEXT, HEAD = 0, 1, 2
"""Columns of a table: batch row, context length; then the sequence's pages."""

_CACHE = types.float32[:, :, :, ::1]


def decode_table(spans: Sequence[SequenceSpan], block_size: int) -> np.ndarray:
    """[sequences, HEAD + pages] int64 for spans of one token; shorter rows end in zeros."""
    num_blocks = [-(-span.context_len // block_size) for span in spans]
    table = np.zeros((len(spans), HEAD + max(num_blocks)), np.int64)
    for entry, span, blocks in zip(table, spans, num_blocks, strict=True):
        entry[ROW], entry[CONTEXT] = span.query_start, span.context_len
        entry[HEAD : HEAD + blocks] = span.block_table[:blocks]
    return table


@compiled(
    types.float32[:, :, :],
    _CACHE,
    _CACHE,
    Int64Matrix,
    types.float32,
    types.int64,
    types.float32,
    types.float32[:, :, ::1],
)
def attend_decodes(query, key_cache, value_cache, table, scale, window, soft_cap, out):
    """out [T, Hq, D] at the table's rows; caches [Hkv, P, S, D]; window, soft_cap: 0 for none."""
    num_kv_heads, _, block_size, head_dim = key_cache.shape
    group = query.shape[1] // num_kv_heads
    scores = np.empty((group, (table.shape[1] - HEAD) * block_size), np.float32)
    queries = np.empty((group, head_dim), np.float32)
    for entry in table:
        row, length = entry[ROW], entry[CONTEXT]
        begin = max(0, length - window) if window > 0 else 0
        for head in range(num_kv_heads):
            for g in range(group):
                for d in range(head_dim):
                    queries[g, d] = query[row, head * group + g, d] * scale
            for position in range(begin, length):
                page = entry[HEAD + position // block_size]
                key = key_cache[head, page, position % block_size]
                for g in range(group):
                    total = np.float32(0.0)
                    for d in range(head_dim):
                        total += queries[g, d] * key[d]
                    scores[g, position] = total
            for g in range(group):
                if soft_cap > 0.0:
                    for position in range(begin, length):
                        scores[g, position] = soft_cap * math.tanh(scores[g, position] / soft_cap)
                top = scores[g, begin]
                for position in range(begin + 1, length):
                    top = max(top, scores[g, position])
                mass = np.float32(0.0)
                for position in range(begin, length):
                    weight = math.exp(scores[g, position] - top)
                    scores[g, position] = weight
                    mass += weight
                for position in range(begin, length):
                    scores[g, position] /= mass
                queries[g, :] = 0.0  # from here on, the sums
            for position in range(begin, length):
                page = entry[HEAD + position // block_size]
                value = value_cache[head, page, position % block_size]
                for g in range(group):
                    weight = scores[g, position]
                    for d in range(head_dim):
                        queries[g, d] += weight * value[d]
            for g in range(group):
                for d in range(head_dim):
                    out[row, head * group + g, d] = queries[g, d]


class DecodePlan:
    """A step whose single-token spans are attended to in loops, and the rest in tiles.

    `tile`: makes a plan of `kernels.cpu.attention` of the spans that it is given.
    """

    def __init__(
        self,
        spans: Sequence[SequenceSpan],
        block_size: int,
        tile: Callable[[Sequence[SequenceSpan]], AttentionPlan],
    ) -> None:
        looped = [each for each in spans if each.num_tokens == 1]
        self._spans = spans
        self._tile = tile
        self.table = decode_table(looped, block_size) if looped else None
        rest = [each for each in spans if each.num_tokens > 1]
        self.rest = tile(rest) if rest else AttentionPlan(())

    @cached_property
    def tiles(self) -> AttentionPlan:
        """All spans in tiles, for a dtype that the loops do not take."""
        return self.rest if self.table is None else self._tile(self._spans)


def paged_attention(
    query: Tensor,
    key_cache: Tensor,
    value_cache: Tensor,
    plan: DecodePlan,
    scale: float,
    *,
    window: int = 0,
    soft_cap: float = 0.0,
) -> Tensor:
    if plan.table is None or query.dtype != torch.float32 or key_cache.dtype != torch.float32:
        return attention.paged_attention(
            query, key_cache, value_cache, plan.tiles, scale, window=window, soft_cap=soft_cap
        )
    out = attention.paged_attention(
        query, key_cache, value_cache, plan.rest, scale, window=window, soft_cap=soft_cap
    )
    arrays = (query.numpy(), key_cache.numpy(), value_cache.numpy(), plan.table)
    attend_decodes(*arrays, scale, window, soft_cap, out.numpy())
    return out
