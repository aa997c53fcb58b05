"""What a real model says to each of some requests alone: the truth for whatever runs them together.

A tiny base, three adapters of different ranks on it, and requests of each; drawn and greedy, of two
tenants, some with a prompt that begins like another one's.
"""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path

import torch

from engine.config import EngineConfig
from engine.messages import AdapterRef, EngineRequest, TokenOutput
from tests.builders.engines import EngineHarness, make_request, tokens_of
from tests.builders.peft_models import VARIANTS, VOCAB_SIZE, make_adapter, make_tiny_llama

BLOCK_SIZE = 8
PAGE_BYTES = 8192
ADAPTERS = ["plain", "rslora_all_linear", "rank_1"]
CONFIG = EngineConfig(pool_bytes=1 << 24, block_size=BLOCK_SIZE, batch_invariant=True)


class SoloRuns:
    """Tokens and logits of each request, computed alone in a large pool without a cache."""

    def __init__(self, folder: Path) -> None:
        self.base = make_tiny_llama(folder / "base")
        self.adapters = {
            name: make_adapter(self.base, folder / name, seed=seed, **VARIANTS[name])
            for seed, name in enumerate(ADAPTERS)
        }
        harness = EngineHarness(self.base, folder / "store", replace(CONFIG, prefix_caching=False))
        self.requests = _requests(self.publish(harness))
        self.tokens = {
            each.request_id: tokens_of(harness.run([each]))[each.request_id]
            for each in self.requests
        }
        self.logits = {each.request_id: harness.logits(each.request_id) for each in self.requests}
        harness.close()

    def publish(self, harness: EngineHarness) -> list[AdapterRef | None]:
        """The adapters in the store of `harness`; None for the base."""
        return [None, *(harness.publish(self.adapters[name]) for name in ADAPTERS)]

    def run_together(self, harness: EngineHarness) -> dict[str, list[TokenOutput]]:
        """All requests at once.

        The adapters have been read before, so that the schedule does not depend on the disk.
        """
        for number, ref in enumerate(self.publish(harness)):
            harness.run([make_request(f"warm-up {number}", [1], adapter=ref, max_tokens=1)])
        return harness.run(self.requests)

    def check(self, harness: EngineHarness) -> None:
        """Together, every token and every logit is the solo run's, to the bit."""
        assert tokens_of(self.run_together(harness)) == self.tokens
        for request_id, logits in self.logits.items():
            assert torch.equal(harness.logits(request_id), logits)


def _requests(refs: list[AdapterRef | None]) -> list[EngineRequest]:
    rng = random.Random(5)
    text = rng.choices(range(3, VOCAB_SIZE), k=40)
    return [
        make_request(
            f"r{number}",
            [
                *text[: rng.choice([0, 0, 17, 40])],
                *rng.choices(range(3, VOCAB_SIZE), k=rng.randrange(1, 20)),
            ],
            adapter=refs[number % len(refs)],
            tenant_id="ten_b" if number % len(refs) == 0 else "ten_a",
            max_tokens=rng.randrange(8, 40),
            temperature=float(number % 3 == 0),
            seed=number,
        )
        for number in range(12)
    ]
