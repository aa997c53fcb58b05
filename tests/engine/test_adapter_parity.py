"""Exact or refused: an accepted adapter's logits are PEFT's, whatever shares the batch with it."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

from engine.config import EngineConfig
from engine.messages import AdapterRef, EngineRequest
from kernels.interface import LoraPart, LoraSite
from lora.manifest import read_manifest
from lora.store import CONFIG_FILE, WEIGHTS_FILE
from lora.weights import LoraWeights, load_weights
from tests.builders.engines import EngineHarness, make_request, tokens_of
from tests.builders.peft_models import (
    VARIANTS,
    VOCAB_SIZE,
    Oracle,
    make_adapter,
    make_tiny_llama,
)

MAX_LOGIT_ERROR = 1e-3
FILE_DTYPES = [torch.float32, torch.float16, torch.bfloat16]
BASES = {
    "untied": {},
    "tied_wide_heads": {"tie_word_embeddings": True, "head_dim": 32},
    "attention_bias": {"attention_bias": True, "mlp_bias": True},
    "llama3_rope": {
        "rope_parameters": {
            "rope_type": "llama3",
            "rope_theta": 500000.0,
            "factor": 8.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 64,
        }
    },
}
CONFIGS = {
    "fast": EngineConfig(pool_bytes=1 << 24),
    "small_chunks": EngineConfig(pool_bytes=1 << 24, max_num_batched_tokens=7, max_num_seqs=4),
    "invariant": EngineConfig(pool_bytes=1 << 24, batch_invariant=True),
    "scarce_pages": EngineConfig(pool_bytes=230 * 8192, block_size=8),
    "reference": EngineConfig(pool_bytes=1 << 24, backend="reference"),
}
Start = Callable[[str], EngineHarness]


class World:
    """One tiny base, PEFT's adapters on it, and the oracle."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.base = make_tiny_llama(folder / "base")
        self.oracle = Oracle(self.base)
        self.adapters = {
            name: make_adapter(
                self.base,
                folder / name,
                seed=seed,
                file_dtype=FILE_DTYPES[seed % 3],
                **config,
            )
            for seed, (name, config) in enumerate(VARIANTS.items())
        }


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    return World(tmp_path_factory.mktemp("world"))


@pytest.fixture
def start(world: World, tmp_path: Path) -> Iterator[Start]:
    harnesses = []

    def make(config: str) -> EngineHarness:
        harnesses.append(EngineHarness(world.base, tmp_path / "store", CONFIGS[config]))
        return harnesses[-1]

    yield make
    for harness in harnesses:
        harness.close()


def make_prompt(seed: int, length: int) -> list[int]:
    return random.Random(seed).choices(range(3, VOCAB_SIZE), k=length)


def requests_for(refs: dict[str, AdapterRef | None], max_tokens: int = 6) -> list[EngineRequest]:
    """One request per adapter (None: the base), prompts of 1 to 40 tokens."""
    return [
        make_request(
            name, make_prompt(seed, 1 + 13 * seed % 40), adapter=ref, max_tokens=max_tokens
        )
        for seed, (name, ref) in enumerate(refs.items())
    ]


def logit_error(
    harness: EngineHarness, oracle: Oracle, request: EngineRequest, tokens: list[int], folder: Path
) -> float:
    """The largest difference from PEFT's logits over every sampled position."""
    prompt = request.prompt_token_ids
    want = oracle.logits(folder, prompt + tokens)[len(prompt) - 1 : -1]
    return float((harness.logits(request.request_id) - want).abs().max())


@pytest.mark.parametrize("config", sorted(CONFIGS))
def test_logits_of_every_variant_equal_peft_in_one_mixed_batch(
    world: World, start: Start, config: str
) -> None:
    harness = start(config)
    refs = {name: harness.publish(folder) for name, folder in world.adapters.items()}
    requests = requests_for({"base": None, **refs, "base again": None})
    for round_number in range(2 if config != "reference" else 1):
        order = list(requests)
        random.Random(round_number).shuffle(order)
        harness.runner.recorded.clear()
        tokens = tokens_of(harness.run(order))
        for request in requests:
            folder = world.adapters.get(request.request_id)
            error = logit_error(harness, world.oracle, request, tokens[request.request_id], folder)
            assert error < MAX_LOGIT_ERROR, f"{request.request_id}: {error}"


def test_requests_that_arrive_while_others_run_change_nothing(world: World, start: Start) -> None:
    harness = start("small_chunks")
    refs = {name: harness.publish(folder) for name, folder in world.adapters.items()}
    requests = requests_for({**refs, "base": None}, max_tokens=9)
    outputs: dict[str, list[object]] = {}
    for request in requests:
        harness.core.add(request)
        for output in [*harness.step(), *harness.step()]:
            outputs.setdefault(output.request_id, []).append(output)
    for request_id, parts in harness.finish().items():
        outputs.setdefault(request_id, []).extend(parts)
    tokens = tokens_of(outputs)
    for request in requests:
        folder = world.adapters.get(request.request_id)
        error = logit_error(harness, world.oracle, request, tokens[request.request_id], folder)
        assert error < MAX_LOGIT_ERROR, f"{request.request_id}: {error}"


@pytest.mark.parametrize("shape", sorted(BASES))
def test_logits_equal_peft_on_every_kind_of_llama(shape: str, tmp_path: Path) -> None:
    base = make_tiny_llama(tmp_path / "base", **BASES[shape])
    config = VARIANTS["rslora_all_linear"]
    adapter = make_adapter(base, tmp_path / "adapter", seed=3, **config)
    harness = EngineHarness(base, tmp_path / "store", CONFIGS["fast"])
    requests = requests_for({"base": None, "adapter": harness.publish(adapter)}, max_tokens=120)
    tokens = tokens_of(harness.run(requests))
    harness.close()
    oracle = Oracle(base)
    for request, folder in zip(requests, (None, adapter), strict=True):
        error = logit_error(harness, oracle, request, tokens[request.request_id], folder)
        assert error < MAX_LOGIT_ERROR, f"{shape} {request.request_id}: {error}"


def test_200_greedy_tokens_equal_what_transformers_and_peft_generate(
    world: World, start: Start
) -> None:
    harness = start("fast")
    refs = {name: harness.publish(folder) for name, folder in world.adapters.items()}
    requests = requests_for({**refs, "base": None}, max_tokens=200)
    tokens = tokens_of(harness.run(requests))
    for request in requests:
        folder = world.adapters.get(request.request_id)
        want = world.oracle.greedy(folder, request.prompt_token_ids, 200)
        assert tokens[request.request_id] == want, request.request_id


def test_base_rows_of_a_mixed_batch_equal_a_run_with_no_adapter_loaded(
    world: World, start: Start
) -> None:
    prompt = make_prompt(99, 21)
    alone, mixed = start("invariant"), start("invariant")
    tokens_of(alone.run([make_request("base", prompt)]))
    refs = {name: mixed.publish(folder) for name, folder in world.adapters.items()}
    tokens_of(mixed.run([make_request("base", prompt), *requests_for(refs)]))
    assert torch.equal(alone.logits("base"), mixed.logits("base"))


def scale_site(site: LoraSite, factor: float) -> LoraSite:
    parts = tuple(LoraPart(part.b * factor, part.rank, part.out) for part in site.parts)
    return LoraSite(site.a, parts)


def read_weights(harness: EngineHarness, ref: AdapterRef) -> LoraWeights:
    folder = harness.store.fetch(ref.locator)
    config, weights = folder / CONFIG_FILE, folder / WEIGHTS_FILE
    manifest = read_manifest(config.read_bytes(), weights, harness.base)
    return load_weights(manifest, weights, harness.base, harness.runner.base_tensors)


@pytest.mark.parametrize("fault", ["wrong_scale", "another_adapters_pages"])
def test_a_wrong_adapter_fails_the_same_comparison(
    world: World, start: Start, fault: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    harness = start("fast")
    names = ["rslora_all_linear", "patterns"]
    refs = {name: harness.publish(world.adapters[name]) for name in names}
    weights = {ref: read_weights(harness, ref) for ref in refs.values()}

    def faulty(ref: AdapterRef) -> LoraWeights:
        if fault == "wrong_scale":
            sites = {key: scale_site(site, 0.25) for key, site in weights[ref].sites.items()}
            return LoraWeights(sites, weights[ref].num_bytes)
        return weights[refs[names[0]] if ref == refs[names[1]] else refs[names[1]]]

    monkeypatch.setattr(harness.core.residency, "weights", faulty)
    requests = requests_for(refs)
    tokens = tokens_of(harness.run(requests))
    for request in requests:
        folder = world.adapters[request.request_id]
        error = logit_error(harness, world.oracle, request, tokens[request.request_id], folder)
        assert error > 10 * MAX_LOGIT_ERROR
