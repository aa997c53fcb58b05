"""Tokens equal the solo run's under prefix hits, for any chunk size, while adapters come and go.

Three adapters of different ranks and the base; two tenants; the pool is too small for all of it.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from engine.config import EngineConfig
from engine.messages import AdapterRef, EngineRequest
from tests.builders.deferring_runner import DeferringRunner
from tests.builders.engines import EngineHarness, RecordingRunner, tokens_of
from tests.builders.peft_models import VARIANTS, Oracle, make_adapter, make_tiny_llama
from tests.engine.test_prefix_model import (
    BLOCK_SIZE,
    MAX_LOGIT_ERROR,
    MODELS,
    mixed_requests,
    publish_all,
)

CHUNKS = [1, 2, 3, 7, 8, 9, 16, 17, 31, 64, 128, 512]
RUNNERS = [RecordingRunner, DeferringRunner]
ROOMY, SCARCE = 400, 46
"""Pages: the adapters take 26, the longest prompt 8."""


class Truth:
    """The base, its adapters, the requests, and what each gets alone without a cache."""

    def __init__(self, folder: Path) -> None:
        base = make_tiny_llama(folder / "base")
        self.folders = {
            "base": base,
            **{
                name: make_adapter(base, folder / name, seed=seed, **VARIANTS[name])
                for seed, name in enumerate(MODELS[:3])
            },
        }
        self.oracle = Oracle(base)
        harness = EngineHarness(base, folder / "store", self.config(prefix_caching=False))
        self.requests = mixed_requests(publish_all(harness, self.folders))
        self.tokens = {
            each.request_id: tokens_of(harness.run([each]))[each.request_id]
            for each in self.requests
        }
        harness.close()

    def config(self, **changes: object) -> EngineConfig:
        fields = {"pool_bytes": 1 << 23, "block_size": BLOCK_SIZE, "batch_invariant": True}
        return EngineConfig(**{**fields, **changes})

    def logit_error(self, harness: EngineHarness, request: EngineRequest) -> float:
        """Of a run of `request` that gave the tokens of the solo run, against PEFT."""
        tokens = self.tokens[request.request_id]
        name = request.request_id.rsplit("-", 1)[0]
        folder = self.folders[name] if name != "base" else None
        prompt = request.prompt_token_ids
        want = self.oracle.logits(folder, prompt + tokens)[len(prompt) - 1 : -1]
        return float((harness.logits(request.request_id)[-len(tokens) :] - want).abs().max())


@pytest.fixture(scope="module")
def truth(tmp_path_factory: pytest.TempPathFactory) -> Truth:
    return Truth(tmp_path_factory.mktemp("truth"))


@pytest.mark.parametrize("chunk", CHUNKS)
def test_tokens_equal_the_solo_run_and_logits_peft(
    truth: Truth, tmp_path: Path, chunk: int
) -> None:
    run_twice(truth, tmp_path, chunk, RUNNERS[CHUNKS.index(chunk) % 2], ROOMY)


@pytest.mark.parametrize("chunk", [9, 16, 31, 512])
@pytest.mark.parametrize("runner", RUNNERS)
def test_tokens_equal_the_solo_run_while_adapters_and_prefixes_are_evicted(
    truth: Truth, tmp_path: Path, chunk: int, runner: type[RecordingRunner]
) -> None:
    assert run_twice(truth, tmp_path, chunk, runner, SCARCE) > 0


def run_twice(
    truth: Truth, folder: Path, chunk: int, runner: type[RecordingRunner], num_pages: int
) -> int:
    """How many adapters were evicted."""
    config = truth.config(max_num_batched_tokens=chunk, max_num_seqs=6)
    config = config.with_pool_bytes(num_pages * 8192)
    harness = EngineHarness(truth.folders["base"], folder / "store", config, runner)
    evicted: list[AdapterRef] = []
    evict = harness.core.residency.evict

    def count(ref: AdapterRef) -> None:
        evicted.append(ref)
        evict(ref)

    harness.core.residency.evict = count
    publish_all(harness, truth.folders)
    for _ in range(2):
        harness.runner.recorded.clear()
        assert tokens_of(harness.run(truth.requests)) == truth.tokens
    for request in truth.requests:
        assert truth.logit_error(harness, request) < MAX_LOGIT_ERROR
    assert harness.core.prefix_cache.num_hit_tokens > 200
    harness.close()
    return len(evicted)
