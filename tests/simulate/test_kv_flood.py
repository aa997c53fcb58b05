"""A tenant that floods the pool with its prompts leaves another one's cached prefix alone.

Two cases: a flood that wants every page at once, and one that comes request by request. What is
compared is the share of the victim's prompt tokens that are cached, against a run without flood.
"""

from __future__ import annotations

from random import Random

import pytest

from tests.builders.engines import make_request
from tests.builders.scripted_loader import BLOCK_SIZE
from tests.engine.test_prefix_sharing import Engine

NUM_PAGES = 200
PREFIX = [1 + i % 90 for i in range(20 * BLOCK_SIZE)]
"""The victim's system prompt: a tenth of the pool."""
NUM_QUESTIONS = 20
STEPS_BETWEEN = 50
LEAST_OF_SOLO = 0.95


def hit_rate(seed: int, *, num_flooding: int, share: float = 0.25, max_in_flight: int = 1) -> float:
    """Of the victim's prompt tokens, how many were cached while so many floods were kept going."""
    engine = Engine(
        max_in_flight,
        NUM_PAGES,
        max_num_seqs=8,
        max_num_batched_tokens=64,
        prefix_protected_share=share,
    )
    core, rng = engine.core, Random(seed)
    flooding: set[str] = set()
    cached: dict[str, int] = {}
    num_sent = num_steps = 0
    while len(cached) < NUM_QUESTIONS:
        while len(flooding) < num_flooding:
            name = f"flood {num_sent}"
            num_sent += 1
            prompt = rng.choices(range(128), k=rng.randint(60, 220))
            core.add(make_request(name, prompt, max_tokens=rng.randint(1, 20), tenant_id="flood"))
            flooding.add(name)
        if num_steps % STEPS_BETWEEN == 0:
            question = PREFIX + rng.choices(range(128), k=5)
            core.add(make_request(f"victim {num_steps}", question, tenant_id="victim"))
        num_steps += 1
        for batch in core.step().values():
            for output in batch.outputs:
                if output.finish_reason is not None:
                    flooding.discard(output.request_id)
                    if output.request_id.startswith("victim"):
                        cached[output.request_id] = output.num_cached_tokens
        core.check_integrity()
    return sum(cached.values()) / (len(cached) * (len(PREFIX) + 5))


@pytest.mark.parametrize("max_in_flight", [1, 2])
@pytest.mark.parametrize("num_flooding", [1, 6, 30])
def test_a_flood_costs_its_victim_at_most_a_twentieth_of_its_hits(
    num_flooding: int, max_in_flight: int
) -> None:
    for seed in range(3):
        solo = hit_rate(seed, num_flooding=0, max_in_flight=max_in_flight)
        assert solo > 0.85
        flooded = hit_rate(seed, num_flooding=num_flooding, max_in_flight=max_in_flight)
        assert flooded >= LEAST_OF_SOLO * solo


def test_without_quotas_the_same_flood_costs_it_more() -> None:
    rates = [hit_rate(seed, num_flooding=30, share=0.0) for seed in range(3)]
    assert min(rates) < 0.5 * hit_rate(0, num_flooding=0)
