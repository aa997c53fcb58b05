"""The CPU backend whose bits do not depend on the batch: `--batch-invariant`.

Every product has one fixed shape: rows go through linears in padded tiles, through LoRA one by
one, and attention runs in tiles of `QUERY_TILE` tokens and KV splits at absolute positions, for
prefill and decode alike. So a position's result is a function of the base, the adapter and the
tokens before it: not of its neighbours, the chunk borders, or its place in the batch.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional

from kernels.cpu.adapter_rows import (
    add_embedding_by,
    add_row_bias,
    override_by,
    replace_embedding_rows,
    scale_output,
)
from kernels.cpu.attention import AttentionPlan, TileSizes, build_plan, paged_attention
from kernels.cpu.linear import PackedLinear, pack_linear
from kernels.cpu.linear import linear as tile_linear
from kernels.cpu.lora import add_lora
from kernels.cpu.lora import plan_lora_invariant as plan_lora
from kernels.cpu.pages import gather_pages, scatter_pages
from kernels.cpu.pointwise import add_rms_norm, rms_norm, rope_and_store_kv
from kernels.cpu.sampling import apply_penalties, log_probs, sample
from kernels.interface import LoraSegment, SequenceSpan, SiteKey

__all__ = [
    "add_embedding_lora",
    "add_lora",
    "add_rms_norm",
    "add_row_bias",
    "apply_penalties",
    "gather_pages",
    "linear",
    "log_probs",
    "override_linear",
    "pack_linear",
    "paged_attention",
    "plan_attention",
    "plan_lora",
    "replace_embedding_rows",
    "rms_norm",
    "rope_and_store_kv",
    "sample",
    "scale_output",
    "scatter_pages",
    "silu_and_mul",
]

ROW_TILE = 16
# Of the forms beside A and B: an adapter mostly has one row in a step.
FORM_ROW_TILE = 4
QUERY_TILE = 4
TILES = TileSizes(decode_rows=QUERY_TILE, prefill_rows=QUERY_TILE, kv_split=128, merge_always=True)


def plan_attention(spans: Sequence[SequenceSpan], block_size: int) -> AttentionPlan:
    return build_plan(spans, block_size, TILES)


def linear(x: Tensor, weight: PackedLinear, bias: Tensor | None) -> Tensor:
    tiles = [tile_linear(tile, weight, bias) for tile in _row_tiles(x, ROW_TILE)]
    return torch.cat(tiles)[: x.shape[0]]


def silu_and_mul(gate_up: Tensor) -> Tensor:
    """By `exp`, whose every element gets the same vector code; `silu`'s last few in a thread's
    share do not, and where the shares begin depends on the number of rows."""
    gate, up = gate_up.chunk(2, dim=-1)
    return gate / gate.neg().exp_().add_(1.0) * up


def add_embedding_lora(
    hidden: Tensor, input_ids: Tensor, plan: Sequence[LoraSegment], key: SiteKey
) -> None:
    add_embedding_by(_multiply_in_tiles, hidden, input_ids, plan, key)


def override_linear(y: Tensor, x: Tensor, plan: Sequence[LoraSegment], key: SiteKey) -> None:
    override_by(_multiply_in_tiles, y, x, plan, key)


def _multiply_in_tiles(x: Tensor, w: Tensor) -> Tensor:
    tiles = [torch.mm(tile, w.t()) for tile in _row_tiles(x, FORM_ROW_TILE)]
    return torch.cat(tiles)[: x.shape[0]]


def _row_tiles(x: Tensor, rows: int) -> Sequence[Tensor]:
    """x [T, K] as tiles of exactly [rows, K], the last one padded with zeros."""
    missing = -x.shape[0] % rows
    padded = functional.pad(x, (0, 0, 0, missing)) if missing else x
    return torch.split(padded, rows)
