"""The ops of `kernels.interface` as Triton kernels: the backend called `gpu`.

Knows nothing of requests, adapters or tenants. Importing it needs Triton, but no CUDA, no driver
and no GPU: kernels are compiled at their first launch, ahead of time by `kernels.aot`, or
interpreted on CPU tensors where `TRITON_INTERPRET=1`.
"""

from __future__ import annotations

from kernels.gpu.linear import linear, pack_linear
from kernels.gpu.pointwise import add_rms_norm, apply_penalties, rms_norm, silu_and_mul
from kernels.gpu.sampling import log_probs, sample

__all__ = [
    "add_rms_norm",
    "apply_penalties",
    "linear",
    "log_probs",
    "pack_linear",
    "rms_norm",
    "sample",
    "silu_and_mul",
]
