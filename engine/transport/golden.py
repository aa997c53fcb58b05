"""Golden prompts: what a base and an adapter on it are asked, so that they can be compared.

Knows nothing of who asks. Torch-free. Invariant: the prompts depend on the base alone.
"""

from __future__ import annotations

import random

from engine.messages import (
    TRIAL_TENANT,
    AdapterRef,
    EngineRequest,
    Evidence,
    SamplingParams,
    ServiceTier,
)
from lora.base_spec import BaseSpec

PROMPT_LENGTHS = (3, 8, 13, 24)
NOISE = 1e-4
"""What two runs of the same differ by, in other batches: relative to the largest logit."""


def golden_prompts(base: BaseSpec) -> list[list[int]]:
    """A few prompts of random ids."""
    draw = random.Random(base.fingerprint)
    return [[draw.randrange(base.vocab_size) for _ in range(num)] for num in PROMPT_LENGTHS]


def trial_request(
    request_id: str, api_id: str, prompt: list[int], adapter: AdapterRef | None
) -> EngineRequest:
    """One golden prompt, of the lowest service tier: its one token is not what is asked for."""
    return EngineRequest(
        request_id=request_id,
        tenant_id=TRIAL_TENANT,
        api_id=api_id,
        epoch=0,
        prompt_token_ids=prompt,
        sampling=SamplingParams(seed=0, max_tokens=1, temperature=0.0),
        adapter=adapter,
        service_tier=ServiceTier.FLEX,
        wants_evidence=True,
    )


def largest_change(before: Evidence, after: Evidence) -> float:
    """Of a logit; 0 where it is no more than two runs of the same may differ by."""
    pairs = zip(before.logits, after.logits, strict=True)
    change = max((abs(own - other) for own, other in pairs), default=0.0)
    largest = max((abs(own) for own in before.logits), default=0.0)
    return 0.0 if change <= NOISE * max(1.0, largest) else change
