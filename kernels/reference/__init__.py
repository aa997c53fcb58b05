"""The specification: every op of `kernels.interface` as plain loops in float32.

Slow on purpose. Nothing here is shared with the fast backends, so that a mistake in one does not
hide in the other.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from kernels.interface import LoraSegment, SequenceSpan, SiteKey


def pack_linear(weight: Tensor) -> Tensor:
    return weight


def linear(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    y = torch.einsum("tk,nk->tn", x.float(), weight.float())
    if bias is not None:
        y = y + bias.float()
    return y.to(x.dtype)


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    rows = x.float()
    scale = torch.rsqrt((rows * rows).mean(dim=-1, keepdim=True) + eps)
    return weight * (rows * scale).to(x.dtype)


def silu_and_mul(gate_up: Tensor) -> Tensor:
    gate, up = gate_up.float().chunk(2, dim=-1)
    return (gate / (1 + torch.exp(-gate)) * up).to(gate_up.dtype)


def _rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    half = x.shape[-1] // 2
    turned = torch.cat([-x[..., half:], x[..., :half]], dim=-1)
    return x * cos[:, None, :] + turned * sin[:, None, :]


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
    block_size = key_cache.shape[2]
    rotated_key = _rotate(key, cos, sin)
    for token, slot in enumerate(slot_mapping.tolist()):
        page, offset = divmod(slot, block_size)
        key_cache[:, page, offset] = rotated_key[token]
        value_cache[:, page, offset] = value[token]
    return _rotate(query, cos, sin)


def plan_attention(spans: Sequence[SequenceSpan], block_size: int) -> list[SequenceSpan]:
    return list(spans)


def paged_attention(
    query: Tensor,
    key_cache: Tensor,
    value_cache: Tensor,
    plan: list[SequenceSpan],
    scale: float,
) -> Tensor:
    out = torch.empty_like(query)
    num_heads, head_dim = query.shape[1], query.shape[2]
    group = num_heads // key_cache.shape[0]
    for span in plan:
        pages = torch.tensor(list(span.block_table), dtype=torch.int64)
        keys = key_cache[:, pages].reshape(key_cache.shape[0], -1, head_dim).float()
        values = value_cache[:, pages].reshape(value_cache.shape[0], -1, head_dim).float()
        for row in range(span.num_tokens):
            visible = span.context_len - span.num_tokens + row + 1
            token = span.query_start + row
            for head in range(num_heads):
                kv_head = head // group
                scores = keys[kv_head, :visible] @ query[token, head].float() * scale
                weights = torch.softmax(scores, dim=0)
                out[token, head] = (weights @ values[kv_head, :visible]).to(query.dtype)
    return out


def plan_lora(segments: Sequence[LoraSegment]) -> list[LoraSegment]:
    return list(segments)


def add_lora(y: Tensor, x: Tensor, plan: list[LoraSegment], key: SiteKey) -> None:
    for segment in plan:
        site = segment.weights.sites.get(key)
        if site is None:
            continue
        for row in range(segment.start, segment.end):
            hidden = site.a @ x[row].float()
            for part in site.parts:
                (rank_begin, rank_end), (out_begin, out_end) = part.rank, part.out
                delta = part.b @ hidden[rank_begin:rank_end]
                y[row, out_begin:out_end] = (y[row, out_begin:out_end].float() + delta).to(y.dtype)


def sample(
    logits: Tensor, temperature: Tensor, top_k: Tensor, top_p: Tensor, uniform: Tensor
) -> Tensor:
    return torch.tensor(
        [
            _sample_row(row, float(t), int(k), float(p), float(u))
            for row, t, k, p, u in zip(logits, temperature, top_k, top_p, uniform, strict=True)
        ],
        dtype=torch.int64,
    )


def _sample_row(
    logits: Tensor, temperature: float, top_k: int, top_p: float, uniform: float
) -> int:
    if temperature == 0:
        return int(torch.argmax(logits))
    highest = float(logits.max())
    scores = [(score - highest) / temperature for score in logits.double().tolist()]
    if top_k:
        last = sorted(scores, reverse=True)[min(top_k, len(scores)) - 1]
        scores = [score if score >= last else -math.inf for score in scores]
    weights = [math.exp(score) for score in scores]
    weights = _nucleus(weights, top_p)
    target, passed = uniform * sum(weights), 0.0
    for token, weight in enumerate(weights):
        passed += weight
        if passed > target:
            return token
    return max(token for token, weight in enumerate(weights) if weight)


def _nucleus(weights: list[float], top_p: float) -> list[float]:
    total, passed = sum(weights), 0.0
    for weight in sorted(weights, reverse=True):
        passed += weight
        if passed >= top_p * total:
            return [w if w >= weight else 0.0 for w in weights]
    return weights
