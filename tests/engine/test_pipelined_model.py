"""A real model gives the same tokens whether each step is collected at once or one step late."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from engine.config import EngineConfig
from engine.messages import AdapterRef, EngineRequest
from tests.builders.deferring_runner import DeferringRunner, WrongRowRunner
from tests.builders.engines import EngineHarness, RecordingRunner, make_request, tokens_of
from tests.builders.peft_models import VARIANTS, VOCAB_SIZE, make_adapter, make_tiny_llama

CONFIGS = {
    "roomy": EngineConfig(pool_bytes=1 << 24, batch_invariant=True),
    "scarce": EngineConfig(
        pool_bytes=20 * 8192,
        block_size=8,
        max_num_batched_tokens=24,
        max_num_seqs=6,
        batch_invariant=True,
    ),
}


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The base and two adapters on it."""
    root = tmp_path_factory.mktemp("pipelined")
    base = make_tiny_llama(root / "base")
    names = ("plain", "patterns")
    return {
        "base": base,
        **{
            name: make_adapter(base, root / name, seed=seed, **VARIANTS[name])
            for seed, name in enumerate(names)
        },
    }


def requests_for(refs: list[AdapterRef | None]) -> list[EngineRequest]:
    """Greedy and drawn, with and without stop tokens, of the base and of each adapter."""
    rng = random.Random(5)
    return [
        make_request(
            f"r{number}",
            rng.choices(range(3, VOCAB_SIZE), k=rng.randrange(1, 40)),
            adapter=refs[number % len(refs)],
            max_tokens=rng.randrange(1, 24),
            temperature=float(number % 2),
            seed=number,
            stop_token_ids=tuple(range(0, VOCAB_SIZE, 9)) if number % 4 > 1 else (),
        )
        for number in range(12)
    ]


def run(
    folders: dict[str, Path], store: Path, config: str, runner: type[RecordingRunner]
) -> tuple[dict[str, list[int]], EngineHarness]:
    harness = EngineHarness(folders["base"], store, CONFIGS[config], runner)
    refs = [None, *(harness.publish(folders[name]) for name in ("plain", "patterns"))]
    outputs = harness.run(requests_for(refs))
    harness.close()
    return tokens_of(outputs), harness


@pytest.mark.parametrize("config", sorted(CONFIGS))
def test_a_model_gives_the_same_tokens_with_a_step_in_flight(
    folders: dict[str, Path], tmp_path: Path, config: str
) -> None:
    at_once, _ = run(folders, tmp_path / "a", config, RecordingRunner)
    one_late, harness = run(folders, tmp_path / "b", config, DeferringRunner)
    assert isinstance(harness.runner, DeferringRunner)
    assert harness.runner.num_placeholders > 50, "ids were scheduled before they were known"
    assert (harness.core.swapping.num_preempted > 0) is (config == "scarce")
    assert one_late == at_once


def test_a_runner_that_takes_placeholders_from_a_wrong_row_gives_other_tokens(
    folders: dict[str, Path], tmp_path: Path
) -> None:
    right, _ = run(folders, tmp_path / "a", "roomy", DeferringRunner)
    wrong, _ = run(folders, tmp_path / "b", "roomy", WrongRowRunner)
    assert wrong != right
