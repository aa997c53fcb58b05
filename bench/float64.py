"""The ops once more, in float64 and as plainly as can be, for kernels to be compared with.

Knows no kernel and no plan. Runs where its inputs are. Invariant: nothing is rounded before the
result, so that what differs is the kernel's error alone.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from kernels.interface import LoraSite, SequenceSpan


def attention(
    query: Tensor,
    key_cache: Tensor,
    value_cache: Tensor,
    spans: Sequence[SequenceSpan],
    scale: float,
    window: int = 0,
    soft_cap: float = 0.0,
) -> Tensor:
    """query [T, Hq, D]; caches [Hkv, P, S, D] -> [T, Hq, D]; see `kernels.interface`."""
    out = torch.zeros_like(query, dtype=torch.float64)
    num_heads = query.shape[1]
    group = num_heads // key_cache.shape[0]
    for span in spans:
        rows = slice(span.query_start, span.query_start + span.num_tokens)
        keys, values = (_context(cache, span) for cache in (key_cache, value_cache))
        keys, values = (x.repeat_interleave(group, dim=0) for x in (keys, values))
        scores = torch.einsum("thd,hkd->htk", query[rows].double(), keys) * scale
        if soft_cap:
            scores = soft_cap * torch.tanh(scores / soft_cap)
        positions = torch.arange(span.context_len, device=query.device)
        own = positions[span.context_len - span.num_tokens :, None]
        hidden = positions[None, :] > own
        if window:
            hidden |= positions[None, :] <= own - window
        weights = torch.softmax(scores.masked_fill(hidden[None], -torch.inf), dim=-1)
        out[rows] = torch.einsum("htk,hkd->thd", weights, values)
    return out


def _context(cache: Tensor, span: SequenceSpan) -> Tensor:
    """[Hkv, context_len, D], what lies behind the context left out."""
    pages = torch.tensor(list(span.block_table), device=cache.device)
    return cache[:, pages].flatten(1, 2)[:, : span.context_len].double()


def add_lora(y: Tensor, x: Tensor, rows: slice, site: LoraSite) -> None:
    """y [T, N] float64 += for `rows`, in place."""
    hidden = x[rows].double() @ site.a.to(x.device, torch.float64).t()
    for part in site.parts:
        delta = hidden[:, slice(*part.rank)] @ part.b.to(x.device, torch.float64).t()
        y[rows, slice(*part.out)] += delta


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    rows = x.double()
    return weight.double() * rows * torch.rsqrt(rows.square().mean(-1, keepdim=True) + eps)


def silu_and_mul(gate_up: Tensor) -> Tensor:
    gate, up = gate_up.double().chunk(2, dim=-1)
    return torch.nn.functional.silu(gate) * up


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """x [T, heads, D]; cos, sin [T, D]; half-split form."""
    first, second = x.double().chunk(2, dim=-1)
    turned = torch.cat((-second, first), dim=-1)
    return x.double() * cos.double()[:, None] + turned * sin.double()[:, None]


def log_probs(logits: Tensor) -> Tensor:
    return torch.log_softmax(logits.double(), dim=-1)
