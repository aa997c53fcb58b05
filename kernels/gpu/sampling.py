"""Draw tokens, and give log-probabilities: one program a row, and no sort.

Knows nothing of requests or seeds. Every truncation keeps the tokens at or above a threshold
logit, which is found exactly (`kernels.gpu.vocabulary`), ties included; sums are float64, so that
a draw differs from the reference's only where `uniform` or a limit falls within float32's
rounding of a border.

Invariants: a row's result is a function of that row alone; an id is within the vocabulary
whatever the logits hold, NaN included.
"""

# mypy: disable-error-code="no-untyped-def, untyped-decorator"

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.gpu.launch import AotVariant
from kernels.gpu.tuning import LOG_PROBS, SAMPLE
from kernels.gpu.vocabulary import (
    NO_TOKEN,
    find_least_key,
    find_next,
    find_threshold,
    load_logits,
    measure,
    order_key,
    weigh,
)

LOG2_E = tl.constexpr(1.4426950408889634)
# A temperature below 1e-30 draws as this one does: the likeliest, or one of those tied with it.
HIGHEST_RATE = tl.constexpr(1e30)


@triton.jit
def _draw(row_ptr, num_tokens, highest, rate, threshold, uniform, BLOCK_TOKENS: tl.constexpr):
    """The first id at which the weights, summed in id order, pass `uniform` of their total."""
    total, _, _ = measure(row_ptr, num_tokens, highest, rate, threshold, True, BLOCK_TOKENS)
    target = uniform * total
    lanes = tl.arange(0, BLOCK_TOKENS)
    # The block in which the target is passed; or else, by rounding, the last with any weight.
    block_start = 0
    before = total * 0.0
    passed = total * 0.0
    start = 0
    while (start < num_tokens) & (passed <= target):
        logits = load_logits(row_ptr, start + lanes, num_tokens)
        kept = order_key(logits) >= threshold
        weight = tl.sum(tl.where(kept, weigh(logits, highest, rate), 0.0), axis=0)
        block_start = tl.where(weight > 0.0, start, block_start)
        before = tl.where(weight > 0.0, passed, before)
        passed += weight
        start += BLOCK_TOKENS
    tokens = block_start + lanes
    logits = load_logits(row_ptr, tokens, num_tokens)
    kept = order_key(logits) >= threshold
    weights = tl.where(kept, weigh(logits, highest, rate), 0.0)
    is_passed = (before + tl.cumsum(weights, axis=0) > target) & (weights > 0.0)
    first = tl.min(tl.where(is_passed, tokens, NO_TOKEN), axis=0)
    last = tl.max(tl.where(weights > 0.0, tokens, 0), axis=0)
    return tl.where(first == NO_TOKEN, last, first)


@triton.jit
def sample_kernel(
    token_ids_ptr,
    logits_ptr,
    temperature_ptr,
    top_k_ptr,
    top_p_ptr,
    min_p_ptr,
    uniform_ptr,
    stride_logits,
    num_tokens,
    BLOCK_TOKENS: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    row_ptr = logits_ptr + row * stride_logits
    temperature = tl.load(temperature_ptr + row)
    highest, token_id = find_next(row_ptr, num_tokens, float("inf"), -1, BLOCK_TOKENS)
    token_id = tl.where(token_id == NO_TOKEN, 0, token_id)
    if temperature > 0.0:
        top_k = tl.load(top_k_ptr + row)
        top_p = tl.load(top_p_ptr + row)
        min_p = tl.load(min_p_ptr + row)
        uniform = tl.load(uniform_ptr + row)
        rate = tl.minimum(LOG2_E / temperature, HIGHEST_RATE).to(tl.float32)
        threshold = find_least_key(row_ptr, num_tokens, highest, rate, min_p, BLOCK_TOKENS)
        if top_k > 0:
            threshold = find_threshold(
                row_ptr, num_tokens, highest, rate, threshold, top_k, False, BLOCK_TOKENS
            )
        if top_p < 1.0:
            total, _, _ = measure(row_ptr, num_tokens, highest, rate, threshold, True, BLOCK_TOKENS)
            threshold = find_threshold(
                row_ptr, num_tokens, highest, rate, threshold, top_p * total, True, BLOCK_TOKENS
            )
        token_id = _draw(row_ptr, num_tokens, highest, rate, threshold, uniform, BLOCK_TOKENS)
    tl.store(token_ids_ptr + row, token_id.to(tl.int64))


@triton.jit
def log_probs_kernel(
    chosen_ptr,
    top_ids_ptr,
    top_ptr,
    logits_ptr,
    token_ids_ptr,
    stride_logits,
    num_tokens,
    num_top,
    BLOCK_TOKENS: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    row_ptr = logits_ptr + row * stride_logits
    highest, _ = find_next(row_ptr, num_tokens, float("inf"), -1, BLOCK_TOKENS)
    lanes = tl.arange(0, BLOCK_TOKENS)
    total = tl.zeros([BLOCK_TOKENS], tl.float32)
    for start in range(0, num_tokens, BLOCK_TOKENS):
        total += tl.exp(load_logits(row_ptr, start + lanes, num_tokens) - highest)
    log_total = tl.log(tl.sum(total, axis=0))
    chosen = tl.load(row_ptr + tl.load(token_ids_ptr + row))
    tl.store(chosen_ptr + row, chosen - highest - log_total)
    logit = tl.full((), float("inf"), tl.float32)
    token = tl.full((), -1, tl.int32)
    for rank in range(num_top):
        logit, token = find_next(row_ptr, num_tokens, logit, token, BLOCK_TOKENS)
        tl.store(top_ids_ptr + row * num_top + rank, token.to(tl.int64))
        tl.store(top_ptr + row * num_top + rank, logit - highest - log_total)


def sample(
    logits: Tensor,
    temperature: Tensor,
    top_k: Tensor,
    top_p: Tensor,
    min_p: Tensor,
    uniform: Tensor,
) -> Tensor:
    assert logits.dtype == torch.float32 and logits.stride(-1) == 1
    assert top_k.dtype == torch.int64
    assert all(each.dtype == torch.float64 for each in (temperature, top_p, min_p, uniform))
    num_rows, num_tokens = logits.shape
    token_ids = torch.empty(num_rows, dtype=torch.int64, device=logits.device)
    sample_kernel[(num_rows,)](
        token_ids,
        logits,
        temperature,
        top_k,
        top_p,
        min_p,
        uniform,
        logits.stride(0),
        num_tokens,
        **SAMPLE.launch_kwargs(),
    )
    return token_ids


def log_probs(logits: Tensor, token_ids: Tensor, num_top: int) -> tuple[Tensor, Tensor, Tensor]:
    assert logits.dtype == torch.float32 and logits.stride(-1) == 1
    num_rows, num_tokens = logits.shape
    assert num_top <= num_tokens
    chosen = torch.empty(num_rows, dtype=torch.float32, device=logits.device)
    top_ids = torch.empty((num_rows, num_top), dtype=torch.int64, device=logits.device)
    top = torch.empty((num_rows, num_top), dtype=torch.float32, device=logits.device)
    log_probs_kernel[(num_rows,)](
        chosen,
        top_ids,
        top,
        logits,
        token_ids,
        logits.stride(0),
        num_tokens,
        num_top,
        **LOG_PROBS.launch_kwargs(),
    )
    return chosen, top_ids, top


def aot_variants() -> list[AotVariant]:
    sizes = {"stride_logits": "i32", "num_tokens": "i32"}
    rates = ("temperature_ptr", "top_p_ptr", "min_p_ptr", "uniform_ptr")
    sampling = {"token_ids_ptr": "*i64", "logits_ptr": "*fp32"}
    sampling |= {"temperature_ptr": "*fp64", "top_k_ptr": "*i64"}
    sampling |= dict.fromkeys(rates[1:], "*fp64")
    results = {"chosen_ptr": "*fp32", "top_ids_ptr": "*i64", "top_ptr": "*fp32"}
    inputs = {"logits_ptr": "*fp32", "token_ids_ptr": "*i64"}
    return [
        AotVariant(
            name="sample",
            kernel=sample_kernel,
            signature=sampling | sizes | {"BLOCK_TOKENS": "constexpr"},
            constexprs=dict(SAMPLE.blocks),
            divisible=(*sampling, *sizes),
            num_warps=SAMPLE.num_warps,
            num_stages=SAMPLE.num_stages,
        ),
        AotVariant(
            name="log_probs",
            kernel=log_probs_kernel,
            signature=results | inputs | sizes | {"num_top": "i32", "BLOCK_TOKENS": "constexpr"},
            constexprs=dict(LOG_PROBS.blocks),
            divisible=(*results, *inputs, *sizes),
            num_warps=LOG_PROBS.num_warps,
            num_stages=LOG_PROBS.num_stages,
        ),
    ]
