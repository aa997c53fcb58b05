"""Batched LoRA on a CPU: two small products per adapter over rows sorted by adapter.

For the few adapters of a CPU batch this is faster than padding ranks into one batched product
(measured: `bench/` and the figures in the kernel notes), and it keeps true ranks by itself.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from kernels.interface import LoraSegment


def add_lora(y: Tensor, x: Tensor, segments: Sequence[LoraSegment]) -> None:
    if y.dtype != torch.float32:
        _add_lora_widened(y, x, segments)
        return
    for segment in segments:
        rows = x[segment.start : segment.end]
        hidden = torch.mm(rows, segment.site.a)
        target = y[segment.start : segment.end]
        parts = segment.site.parts
        if len(parts) == 1 and parts[0].out == (0, y.shape[1]):
            target.addmm_(hidden, parts[0].b)
            continue
        for part in parts:
            (rank_begin, rank_end), (out_begin, out_end) = part.rank, part.out
            own_hidden = hidden[:, rank_begin:rank_end] if len(parts) > 1 else hidden
            target[:, out_begin:out_end].addmm_(own_hidden, part.b)


def _add_lora_widened(y: Tensor, x: Tensor, segments: Sequence[LoraSegment]) -> None:
    """The same for a 16-bit model: products and the sum in float32, one rounding at the end."""
    for segment in segments:
        wide = y[segment.start : segment.end].float()
        shifted = LoraSegment(0, segment.end - segment.start, segment.site)
        add_lora(wide, x[segment.start : segment.end].float(), [shifted])
        y[segment.start : segment.end] = wide.to(y.dtype)
