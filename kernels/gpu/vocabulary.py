"""Passes over one row of logits: what sampling and log-probabilities are made of.

Knows nothing of sampling parameters. A row has a hundred thousand logits, so a program walks them
block by block, in lanes, and its lanes are reduced once a pass. The order of a row's logits is
that of `order_key`, an integer, so that a search by halves ends at an exact threshold.

Invariant: a token past the vocabulary loads as -inf, which no pass counts, weighs or finds.
"""

# mypy: disable-error-code="no-untyped-def, untyped-decorator"

from __future__ import annotations

import triton
import triton.language as tl

LEAST_KEY = tl.constexpr(-(2**31))
GREATEST_KEY = tl.constexpr(2**31 - 1)
NO_TOKEN = tl.constexpr(2**31 - 1)


@triton.jit
def load_logits(row_ptr, tokens, num_tokens):
    return tl.load(row_ptr + tokens, mask=tokens < num_tokens, other=float("-inf"))


@triton.jit
def order_key(logits):
    """float32 -> int32 in the same order; the two zeros are one."""
    bits = tl.where(logits == 0.0, 0.0, logits).to(tl.int32, bitcast=True)
    return tl.where(bits < 0, bits ^ 0x7FFFFFFF, bits)


@triton.jit
def weigh(logits, highest, rate):
    """How likely, as a share of the likeliest: 2^((logit - highest) * rate), in float64 for sums.

    `rate` is log2(e) / temperature; finite, so that the likeliest weighs 1 at any temperature.
    """
    return tl.exp2((logits - highest) * rate).to(tl.float64)


@triton.jit
def find_next(row_ptr, num_tokens, last_logit, last_token, BLOCK_TOKENS: tl.constexpr):
    """The likeliest token after (last_logit, last_token), by logit and then by lower id.

    -> its logit, its id; (-inf, NO_TOKEN) where none is left. The first is after (+inf, -1).
    """
    lanes = tl.arange(0, BLOCK_TOKENS)
    best = tl.full([BLOCK_TOKENS], float("-inf"), tl.float32)
    best_token = tl.full([BLOCK_TOKENS], NO_TOKEN, tl.int32)
    for start in range(0, num_tokens, BLOCK_TOKENS):
        tokens = start + lanes
        logits = load_logits(row_ptr, tokens, num_tokens)
        is_after = (logits < last_logit) | ((logits == last_logit) & (tokens > last_token))
        is_better = (logits > best) | (best_token == NO_TOKEN)
        chosen = is_after & is_better & (tokens < num_tokens)
        best = tl.where(chosen, logits, best)
        best_token = tl.where(chosen, tokens, best_token)
    highest = tl.max(best, axis=0)
    return highest, tl.min(tl.where(best == highest, best_token, NO_TOKEN), axis=0)


@triton.jit
def find_least_key(row_ptr, num_tokens, highest, rate, least_weight, BLOCK_TOKENS: tl.constexpr):
    """The least key of a token that weighs at least `least_weight`."""
    lanes = tl.arange(0, BLOCK_TOKENS)
    least = tl.full([BLOCK_TOKENS], GREATEST_KEY, tl.int32)
    for start in range(0, num_tokens, BLOCK_TOKENS):
        tokens = start + lanes
        logits = load_logits(row_ptr, tokens, num_tokens)
        kept = (weigh(logits, highest, rate) >= least_weight) & (tokens < num_tokens)
        least = tl.minimum(least, tl.where(kept, order_key(logits), GREATEST_KEY))
    return tl.min(least, axis=0)


@triton.jit
def measure(
    row_ptr, num_tokens, highest, rate, key, BY_WEIGHT: tl.constexpr, BLOCK_TOKENS: tl.constexpr
):
    """Tokens at or above `key`: their weight, or their number; and the keys on either side of it.

    -> amount float64, the least key that is not below `key`, the greatest that is.
    """
    lanes = tl.arange(0, BLOCK_TOKENS)
    amount = tl.zeros([BLOCK_TOKENS], tl.float64)
    above = tl.full([BLOCK_TOKENS], GREATEST_KEY, tl.int32)
    below = tl.full([BLOCK_TOKENS], LEAST_KEY, tl.int32)
    for start in range(0, num_tokens, BLOCK_TOKENS):
        tokens = start + lanes
        logits = load_logits(row_ptr, tokens, num_tokens)
        keys = order_key(logits)
        kept = (keys >= key) & (tokens < num_tokens)
        if BY_WEIGHT:
            amount += tl.where(kept, weigh(logits, highest, rate), 0.0)
        else:
            amount += tl.where(kept, 1.0, 0.0).to(tl.float64)
        above = tl.minimum(above, tl.where(kept, keys, GREATEST_KEY))
        below = tl.maximum(below, tl.where(kept, LEAST_KEY, keys))
    return tl.sum(amount, axis=0), tl.min(above, axis=0), tl.max(below, axis=0)


@triton.jit
def find_threshold(
    row_ptr,
    num_tokens,
    highest,
    rate,
    least_key,
    wanted,
    BY_WEIGHT: tl.constexpr,
    BLOCK_TOKENS: tl.constexpr,
):
    """The greatest key whose tokens, with all above it, amount to `wanted`; else `least_key`.

    Halves the integers between two keys of the row, and moves each end on to the next key that
    some token has: it ends when they meet, after about log2 of the row's different logits passes.
    """
    low = least_key.to(tl.int64)
    high = order_key(highest).to(tl.int64)
    while low < high:
        middle = low + (high - low + 1) // 2
        amount, above, below = measure(
            row_ptr, num_tokens, highest, rate, middle.to(tl.int32), BY_WEIGHT, BLOCK_TOKENS
        )
        reached = amount >= wanted
        low = tl.where(reached, above.to(tl.int64), low)
        # At least by one, so that the search ends whatever the logits are.
        high = tl.where(reached, high, tl.minimum(below.to(tl.int64), middle - 1))
    return low.to(tl.int32)
