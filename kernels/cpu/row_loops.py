"""Norm and rotary embedding in one pass over each row, where a tensor library makes many.

float32 and contiguous rows only; a row's result depends on no other row.
"""
# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

import math

import numpy as np
from numba import types

from kernels.cpu.compiled import Float32Matrix, Float32Vector, Int64Vector, compiled

_HEADS = types.float32[:, :, :]
_CONTIGUOUS_HEADS = types.float32[:, :, ::1]


@compiled(Float32Matrix, Float32Vector, types.float32, Float32Matrix)
def norm_rows(x, weight, eps, out):
    """out [T, H] = weight * x / sqrt(mean(x^2) + eps)."""
    width = x.shape[1]
    for row in range(x.shape[0]):
        total = np.float32(0.0)
        for i in range(width):
            total += x[row, i] * x[row, i]
        scale = np.float32(1.0) / math.sqrt(total / np.float32(width) + eps)
        for i in range(width):
            out[row, i] = x[row, i] * scale * weight[i]


@compiled(Float32Matrix, Float32Matrix, Float32Vector, types.float32, Float32Matrix)
def add_norm_rows(x, residual, weight, eps, out):
    """residual [T, H] += x; out = weight * residual / sqrt(mean(residual^2) + eps)."""
    width = x.shape[1]
    for row in range(x.shape[0]):
        total = np.float32(0.0)
        for i in range(width):
            value = residual[row, i] + x[row, i]
            residual[row, i] = value
            total += value * value
        scale = np.float32(1.0) / math.sqrt(total / np.float32(width) + eps)
        for i in range(width):
            out[row, i] = residual[row, i] * scale * weight[i]


@compiled(
    _HEADS,
    _HEADS,
    _HEADS,
    types.float32[:, :],
    types.float32[:, :],
    _CONTIGUOUS_HEADS,
    _CONTIGUOUS_HEADS,
    Int64Vector,
    _CONTIGUOUS_HEADS,
)
def rotate_and_store(query, key, value, cos, sin, key_cache, value_cache, slots, out):
    """`rope_and_store_kv` for caches [Hkv, P * S, D]; out [T, Hq, D] is the rotated query."""
    half = query.shape[2] // 2
    for row in range(query.shape[0]):
        slot = slots[row]
        for head in range(query.shape[1]):
            for d in range(half):
                first, second = query[row, head, d], query[row, head, d + half]
                out[row, head, d] = first * cos[row, d] - second * sin[row, d]
                out[row, head, d + half] = second * cos[row, d + half] + first * sin[row, d + half]
        for head in range(key.shape[1]):
            for d in range(half):
                first, second = key[row, head, d], key[row, head, d + half]
                key_cache[head, slot, d] = first * cos[row, d] - second * sin[row, d]
                key_cache[head, slot, d + half] = (
                    second * cos[row, d + half] + first * sin[row, d + half]
                )
                value_cache[head, slot, d] = value[row, head, d]
                value_cache[head, slot, d + half] = value[row, head, d + half]
