"""How tokens are drawn: the body's knobs as the engine takes them.

Knows nothing of HTTP. Invariant: a choice depends on (seed, choice index) alone, so that a prompt
in a list, or one choice of several, comes out as it would on its own.
"""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Sequence

from app.completions.schemas import CommonBody
from engine.messages import SamplingParams

_SEED_BITS = 63


def sampling_params(
    body: CommonBody, *, choice: int, max_tokens: int, stop_token_ids: Sequence[int]
) -> SamplingParams:
    """OpenAI's defaults where a knob is absent; a seed is drawn where none was sent."""
    temperature = 1.0 if body.temperature is None else body.temperature
    top_p = 1.0 if body.top_p is None else body.top_p
    # A nucleus of nothing holds the likeliest token alone, which is what greedy means.
    is_greedy = top_p == 0
    return SamplingParams(
        seed=secrets.randbits(_SEED_BITS) if body.seed is None else choice_seed(body.seed, choice),
        max_tokens=max_tokens,
        temperature=0.0 if is_greedy else temperature,
        top_p=1.0 if is_greedy else top_p,
        top_k=max(0, body.top_k or 0),
        stop_token_ids=tuple(stop_token_ids),
    )


def choice_seed(seed: int, choice: int) -> int:
    """A seed in 0..2^63-1; the first choice's is the client's own where that is not negative."""
    if choice == 0:
        return seed % (1 << _SEED_BITS)
    digest = hashlib.sha256(f"{seed}:{choice}".encode()).digest()
    return int.from_bytes(digest[:8]) >> (64 - _SEED_BITS)
