"""A real model: what was cached is what would have been computed, to the bit, and one's own."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from engine.block_keys import BlockHasher
from engine.config import EngineConfig
from engine.messages import AdapterRef, EngineRequest
from engine.sequence import Sequence
from tests.builders.deferring_runner import DeferringRunner
from tests.builders.engines import EngineHarness, RecordingRunner, make_request, tokens_of
from tests.builders.peft_models import VARIANTS, VOCAB_SIZE, Oracle, make_adapter, make_tiny_llama

BLOCK_SIZE = 8
MAX_LOGIT_ERROR = 1e-3
MODELS = ["plain", "rslora_all_linear", "rank_1", "base"]
TEXT = random.Random(8).choices(range(3, VOCAB_SIZE), k=45)
CACHED = 40
Start = Callable[..., EngineHarness]


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The base, and three adapters of different ranks on it."""
    root = tmp_path_factory.mktemp("prefixes")
    base = make_tiny_llama(root / "base")
    adapters = {
        name: make_adapter(base, root / name, seed=seed, **VARIANTS[name])
        for seed, name in enumerate(MODELS[:3])
    }
    return {"base": base, **adapters}


@pytest.fixture
def start(folders: dict[str, Path], tmp_path: Path) -> Iterator[Start]:
    harnesses = []

    def make(runner: type[RecordingRunner] = RecordingRunner, **changes: Any) -> EngineHarness:
        fields = {"pool_bytes": 1 << 23, "block_size": BLOCK_SIZE, "batch_invariant": True}
        config = EngineConfig(**{**fields, **changes})
        store = tmp_path / f"store-{len(harnesses)}"
        harnesses.append(EngineHarness(folders["base"], store, config, runner))
        return harnesses[-1]

    yield make
    for harness in harnesses:
        harness.close()


def publish_all(harness: EngineHarness, folders: dict[str, Path]) -> dict[str, AdapterRef | None]:
    return {name: harness.publish(folders[name]) if name != "base" else None for name in MODELS}


def ask(harness: EngineHarness, request: EngineRequest) -> tuple[list[int], Tensor, int]:
    """Its tokens, the logits that they come from, and how many tokens were cached."""
    harness.runner.recorded.pop(request.request_id, None)
    outputs = harness.run([request])
    (tokens,) = tokens_of(outputs).values()
    logits = harness.logits(request.request_id)
    assert torch.isfinite(logits).all(), "a poisoned page reached an output"
    return tokens, logits, outputs[request.request_id][-1].num_cached_tokens


@pytest.mark.parametrize("runner", [RecordingRunner, DeferringRunner])
def test_the_same_text_under_each_adapter_and_the_base_is_its_own_and_again_is_cached(
    folders: dict[str, Path], start: Start, runner: type[RecordingRunner]
) -> None:
    solo, shared = start(prefix_caching=False), start(runner)
    refs = publish_all(shared, folders), publish_all(solo, folders)
    oracle = Oracle(folders["base"])
    for round_number in range(2):
        for name in MODELS:
            request = make_request(name, TEXT, adapter=refs[0][name], max_tokens=6)
            tokens, logits, num_cached = ask(shared, request)
            assert num_cached == (0 if round_number == 0 else CACHED)
            want_tokens, want_logits, _ = ask(solo, request)
            assert tokens == want_tokens and torch.equal(logits, want_logits)
            folder = folders[name] if name != "base" else None
            want = oracle.logits(folder, TEXT + tokens)[len(TEXT) - 1 : -1]
            assert float((logits - want).abs().max()) < MAX_LOGIT_ERROR
    assert shared.core.prefix_cache.num_hit_tokens == len(MODELS) * CACHED


class WithoutAdapter(BlockHasher):
    """Negative control: the key of a block does not say under which adapter it was computed."""

    def root(self, tenant_id: str, adapter: AdapterRef | None) -> bytes:
        return super().root(tenant_id, None)


def test_a_key_without_the_adapters_digest_gives_another_adapters_answer(
    folders: dict[str, Path], start: Start
) -> None:
    solo, leaky = start(prefix_caching=False), start()
    base = leaky.base.fingerprint
    leaky.core._hasher = WithoutAdapter(BLOCK_SIZE, base, bytes(32))
    publish_all(solo, folders)
    for name, ref in publish_all(leaky, folders).items():
        request = make_request(name, TEXT, adapter=ref, max_tokens=6)
        _, logits, num_cached = ask(leaky, request)
        error = float((logits - ask(solo, request)[1]).abs().max())
        if name == MODELS[0]:
            assert error == 0.0
        else:
            assert num_cached == CACHED and error > 10 * MAX_LOGIT_ERROR


@pytest.mark.parametrize("is_early", [False, True])
def test_a_block_shared_before_it_is_filled_shows(
    folders: dict[str, Path], start: Start, monkeypatch: pytest.MonkeyPatch, is_early: bool
) -> None:
    if is_early:
        whole_blocks = property(
            lambda self: min(len(self.block_table) * BLOCK_SIZE, self.num_known_tokens)
        )
        monkeypatch.setattr(Sequence, "num_landed_tokens", whole_blocks)
    harness = start(max_num_batched_tokens=12)
    harness.core.add(make_request("first", TEXT))
    harness.step()
    assert harness.core.abort("first", epoch=1)
    if is_early:
        with pytest.raises(
            AssertionError, match=r"a poisoned page|nonfinite_logits|internal_error"
        ):
            ask(harness, make_request("second", TEXT))
    else:
        assert ask(harness, make_request("second", TEXT))[2] == BLOCK_SIZE


def mixed_requests(refs: dict[str, AdapterRef | None]) -> list[EngineRequest]:
    """Two tenants, every model, prompts that begin alike; greedy and drawn."""
    rng = random.Random(3)
    return [
        make_request(
            f"{name}-{number}",
            [*TEXT[: rng.randrange(1, 45)], *rng.choices(range(3, VOCAB_SIZE), k=number)],
            adapter=ref,
            max_tokens=rng.randrange(1, 10),
            tenant_id=f"ten_{number % 2}",
            temperature=float(number == 3),
            seed=number,
        )
        for name, ref in refs.items()
        for number in range(5)
    ]


@pytest.mark.parametrize("chunk", [1, 5, 16, 64, 512])
@pytest.mark.parametrize("runner", [RecordingRunner, DeferringRunner])
def test_tokens_do_not_depend_on_chunks_or_hits(
    folders: dict[str, Path], start: Start, chunk: int, runner: type[RecordingRunner]
) -> None:
    solo = start(prefix_caching=False)
    shared = start(runner, max_num_batched_tokens=chunk, max_num_seqs=6, pool_bytes=90 * 8192)
    publish_all(solo, folders)
    requests = mixed_requests(publish_all(shared, folders))
    once, again = (tokens_of(shared.run(requests)) for _ in range(2))
    assert shared.core.prefix_cache.num_hit_tokens > 500
    assert once == again == {each.request_id: ask(solo, each)[0] for each in requests}


def test_choices_of_one_answer_share_their_prompt_and_draw_as_they_would_alone(
    folders: dict[str, Path], start: Start
) -> None:
    solo, shared = start(prefix_caching=False), start()
    publish_all(solo, folders)
    ref = publish_all(shared, folders)["plain"]
    requests = [
        make_request(f"c{i}", TEXT, adapter=ref, seed=i, temperature=1.0, max_tokens=9)
        for i in range(5)
    ]
    outputs = shared.run(requests)
    assert [outputs[f"c{i}"][-1].num_cached_tokens for i in range(5)] == [0] + [CACHED] * 4
    assert tokens_of(outputs) == {each.request_id: ask(solo, each)[0] for each in requests}
