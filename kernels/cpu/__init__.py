"""The fast CPU backend: packed linears, attention over a work list, compiled loops for few rows.

Knows nothing of requests or adapters. A row's last bits may depend on how many rows share its
batch; `kernels.cpu.invariant` is the form in which they do not.
"""

from __future__ import annotations

from collections.abc import Sequence

from kernels.cpu.adapter_rows import (
    add_embedding_lora,
    add_row_bias,
    override_linear,
    replace_embedding_rows,
    scale_output,
)
from kernels.cpu.attention import AttentionPlan, TileSizes, build_plan
from kernels.cpu.decode_attention import DecodePlan, paged_attention
from kernels.cpu.linear import PackedLinear, linear, pack_linear
from kernels.cpu.lora import add_lora, plan_lora
from kernels.cpu.pages import gather_pages, scatter_pages
from kernels.cpu.pointwise import add_rms_norm, rms_norm, rope_and_store_kv, silu_and_mul
from kernels.cpu.sampling import apply_penalties, log_probs, sample
from kernels.interface import SequenceSpan

__all__ = [
    "PackedLinear",
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

KV_SPLIT = 64
# The longest context that is attended to in one split, where it wastes little.
MAX_WHOLE_CONTEXT = 1024


def plan_attention(spans: Sequence[SequenceSpan], block_size: int) -> DecodePlan:
    def tile(some: Sequence[SequenceSpan]) -> AttentionPlan:
        sizes = TileSizes(decode_rows=1, prefill_rows=64, kv_split=choose_kv_split(some))
        return build_plan(some, block_size, sizes)

    return DecodePlan(spans, block_size, tile)


def choose_kv_split(spans: Sequence[SequenceSpan]) -> int:
    """One split for all where contexts are alike, so that nothing has to be merged."""
    lengths = [span.context_len for span in spans]
    longest = -(-max(lengths) // KV_SPLIT) * KV_SPLIT
    wastes_little = longest * len(lengths) <= 1.5 * sum(lengths) + KV_SPLIT * len(lengths)
    return longest if longest <= MAX_WHOLE_CONTEXT and wastes_little else KV_SPLIT
