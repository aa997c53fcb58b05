"""Ops that treat every row alone: norm, activation, rotary embedding with the KV write.

In float32 they are compiled loops; which form runs depends on the dtype alone, never on the
number of rows, so that a row's bits do not depend on its neighbours.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from kernels.cpu.row_loops import add_norm_rows, norm_rows, rotate_and_store


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    if x.dtype == weight.dtype == torch.float32:
        x = x.contiguous()
        out = torch.empty_like(x)
        norm_rows(x.numpy(), weight.numpy(), eps, out.numpy())
        return out
    rows = x.float()
    scale = rows.square().mean(dim=-1, keepdim=True).add_(eps).rsqrt_()
    return (rows * scale).to(x.dtype).mul_(weight)


def add_rms_norm(x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> Tensor:
    if x.dtype == weight.dtype == torch.float32 and residual.is_contiguous():
        out = torch.empty_like(residual)
        add_norm_rows(x.contiguous().numpy(), residual.numpy(), weight.numpy(), eps, out.numpy())
        return out
    return rms_norm(residual.add_(x), weight, eps)


def silu_and_mul(gate_up: Tensor) -> Tensor:
    gate, up = gate_up.chunk(2, dim=-1)
    return functional.silu(gate).mul_(up)


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """x [T, heads, D]; cos, sin [T, 1, D]."""
    first, second = x.chunk(2, dim=-1)
    turned = torch.cat((second.neg(), first), dim=-1)
    return torch.addcmul(x * cos, turned, sin)


def rope_and_store_kv(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    cos: Tensor,
    sin: Tensor,
    key_cache: Tensor,
    value_cache: Tensor,
    slot_mapping: Tensor,
) -> Tensor:
    key_slots, value_slots = key_cache.flatten(1, 2), value_cache.flatten(1, 2)
    if query.dtype == key_cache.dtype == cos.dtype == torch.float32:
        out = torch.empty(query.shape)
        arrays = (query, key, value, cos, sin, key_slots, value_slots, slot_mapping, out)
        rotate_and_store(*(each.numpy() for each in arrays))
        return out
    cos, sin = cos.unsqueeze(1), sin.unsqueeze(1)
    rotated_key = rotate(key, cos, sin)
    key_slots.index_copy_(1, slot_mapping, rotated_key.transpose(0, 1))
    value_slots.index_copy_(1, slot_mapping, value.transpose(0, 1))
    return rotate(query, cos, sin)
