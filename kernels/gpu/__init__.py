"""The ops of `kernels.interface` as Triton kernels: the backend called `gpu`.

Knows nothing of requests, adapters or tenants. Importing it needs Triton, but no CUDA, no driver
and no GPU: kernels are compiled at their first launch, ahead of time by `kernels.aot`, or
interpreted on CPU tensors where `TRITON_INTERPRET=1`.
"""

from __future__ import annotations

from kernels.gpu.adapter_rows import (
    add_embedding_lora,
    add_row_bias,
    override_linear,
    replace_embedding_rows,
    scale_output,
)
from kernels.gpu.attention import paged_attention, plan_attention
from kernels.gpu.linear import linear, pack_linear
from kernels.gpu.lora import add_lora, plan_lora
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
