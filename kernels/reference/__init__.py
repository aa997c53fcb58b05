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
from kernels.reference.adapter_rows import (
    add_embedding_lora as add_embedding_lora,
)
from kernels.reference.adapter_rows import (
    add_row_bias as add_row_bias,
)
from kernels.reference.adapter_rows import (
    override_linear as override_linear,
)
from kernels.reference.adapter_rows import (
    replace_embedding_rows as replace_embedding_rows,
)
from kernels.reference.adapter_rows import (
    scale_output as scale_output,
)


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


def add_rms_norm(x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> Tensor:
    residual.copy_(residual + x)
    return rms_norm(residual, weight, eps)


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
    *,
    window: int = 0,
    soft_cap: float = 0.0,
) -> Tensor:
    out = torch.empty_like(query)
    num_heads, head_dim = query.shape[1], query.shape[2]
    group = num_heads // key_cache.shape[0]
    for span in plan:
        pages = torch.tensor(list(span.block_table), dtype=torch.int64)
        keys = key_cache[:, pages].reshape(key_cache.shape[0], -1, head_dim).float()
        values = value_cache[:, pages].reshape(value_cache.shape[0], -1, head_dim).float()
        for row in range(span.num_tokens):
            end = span.context_len - span.num_tokens + row + 1
            visible = slice(max(0, end - window) if window else 0, end)
            token = span.query_start + row
            for head in range(num_heads):
                kv_head = head // group
                scores = keys[kv_head, visible] @ query[token, head].float() * scale
                if soft_cap:
                    scores = soft_cap * torch.tanh(scores / soft_cap)
                weights = torch.softmax(scores, dim=0)
                out[token, head] = (weights @ values[kv_head, visible]).to(query.dtype)
    return out


def gather_pages(pool: Tensor, pages: Tensor) -> Tensor:
    return torch.stack([pool[page] for page in pages.tolist()])


def scatter_pages(pool: Tensor, pages: Tensor, content: Tensor) -> None:
    for page, page_content in zip(pages.tolist(), content, strict=True):
        pool[page] = page_content


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


def apply_penalties(
    logits: Tensor,
    output_counts: Tensor,
    seen: Tensor,
    repetition: Tensor,
    frequency: Tensor,
    presence: Tensor,
) -> None:
    for row in range(logits.shape[0]):
        for token in range(logits.shape[1]):
            logit = logits[row, token]
            if seen[row, token]:
                logit = logit / repetition[row] if logit > 0 else logit * repetition[row]
            count = output_counts[row, token]
            penalty = frequency[row] * count + presence[row] * (count > 0)
            logits[row, token] = logit - penalty


def sample(
    logits: Tensor,
    temperature: Tensor,
    top_k: Tensor,
    top_p: Tensor,
    min_p: Tensor,
    uniform: Tensor,
) -> Tensor:
    parameters = zip(temperature, top_k, top_p, min_p, uniform, strict=True)
    return torch.tensor(
        [
            _sample_row(row, float(t), int(k), float(p), float(m), float(u))
            for row, (t, k, p, m, u) in zip(logits, parameters, strict=True)
        ],
        dtype=torch.int64,
    )


def _sample_row(
    logits: Tensor, temperature: float, top_k: int, top_p: float, min_p: float, uniform: float
) -> int:
    if temperature == 0:
        return int(torch.argmax(logits))
    highest = float(logits.max())
    scores = [(score - highest) / temperature for score in logits.double().tolist()]
    scores = [score if math.exp(score) >= min_p else -math.inf for score in scores]
    if top_k:
        last = sorted(scores, reverse=True)[min(top_k, len(scores)) - 1]
        scores = [score if score >= last else -math.inf for score in scores]
    weights = [math.exp(score) for score in scores]
    if top_p < 1:
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


def log_probs(logits: Tensor, token_ids: Tensor, num_top: int) -> tuple[Tensor, Tensor, Tensor]:
    normal = torch.log_softmax(logits.double(), dim=-1).float()
    chosen = [row[token] for row, token in zip(normal, token_ids.tolist(), strict=True)]
    likeliest = [
        sorted(range(len(row)), key=lambda token: (-row[token], token))[:num_top]
        for row in logits.tolist()
    ]
    top_ids = torch.tensor(likeliest, dtype=torch.int64)
    return torch.stack(chosen), top_ids, normal.gather(1, top_ids)
