"""The GPU backend whose bits do not depend on the batch: `--batch-invariant`.

What the fast backend chooses by the batch is fixed here: the linear's tiles (cuBLAS chooses a
kernel by the number of rows), the positions at which attention cuts KV and the form its tiles
have, and the splits of LoRA's shrink. Norms, activation, rotary embedding and sampling treat each
row alone in either backend. So a position's result is a function of the base, the adapter and the
tokens before it.
"""

from __future__ import annotations

from kernels.gpu.adapter_rows import (
    add_embedding_lora,
    add_row_bias,
    override_linear,
    replace_embedding_rows,
    scale_output,
)
from kernels.gpu.attention import paged_attention
from kernels.gpu.attention import plan_attention_invariant as plan_attention
from kernels.gpu.linear import pack_linear
from kernels.gpu.linear import tile_linear as linear
from kernels.gpu.lora import add_lora
from kernels.gpu.lora import plan_lora_invariant as plan_lora
from kernels.gpu.pages import gather_pages, scatter_pages
from kernels.gpu.pointwise import add_rms_norm, apply_penalties, rms_norm, silu_and_mul
from kernels.gpu.rope import rope_and_store_kv
from kernels.gpu.sampling import log_probs, sample

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
