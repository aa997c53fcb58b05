"""Batched LoRA on a CPU: two small products per adapter over rows sorted by adapter.

For the few adapters of a CPU batch this is faster than padding ranks into one batched product
(measured: `bench/` and the figures in the kernel notes), and it keeps true ranks by itself. A
single row, which is what a decoding sequence brings, goes through matrix-vector products.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from kernels.interface import LoraSegment, LoraSite, SiteKey


def plan_lora(segments: Sequence[LoraSegment]) -> Sequence[LoraSegment]:
    return segments


def add_lora(y: Tensor, x: Tensor, plan: Sequence[LoraSegment], key: SiteKey) -> None:
    for segment in plan:
        site = segment.weights.sites.get(key)
        if site is None:
            continue
        start, end = segment.start, segment.end
        if y.dtype != torch.float32:
            _add_widened(y[start:end], x[start:end], site)
        elif end == start + 1:
            _add_to_row(y[start], x[start], site)
        else:
            _add_to_rows(y[start:end], x[start:end], site)


def _add_to_row(y: Tensor, x: Tensor, site: LoraSite) -> None:
    """y [N], x [K]."""
    hidden = torch.mv(site.a, x)
    if len(site.parts) == 1 and site.parts[0].out == (0, y.shape[0]):
        y.addmv_(site.parts[0].b, hidden)
        return
    for part in site.parts:
        (rank_begin, rank_end), (out_begin, out_end) = part.rank, part.out
        y[out_begin:out_end].addmv_(part.b, hidden[rank_begin:rank_end])


def _add_to_rows(y: Tensor, x: Tensor, site: LoraSite) -> None:
    """y [rows, N], x [rows, K]."""
    hidden = torch.mm(x, site.a.t())
    for part in site.parts:
        (rank_begin, rank_end), (out_begin, out_end) = part.rank, part.out
        y[:, out_begin:out_end].addmm_(hidden[:, rank_begin:rank_end], part.b.t())


def _add_widened(y: Tensor, x: Tensor, site: LoraSite) -> None:
    """For a 16-bit model: products and the sum in float32, one rounding at the end."""
    wide = y.float()
    _add_to_rows(wide, x.float(), site)
    y.copy_(wide)
