"""On the device too, what breaks in one row is that row's alone, with a step in flight."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor

from engine.config import EngineConfig
from engine.forward_batch import StepLayout
from engine.gpu_runner import GpuRunner
from engine.messages import EngineRequest
from tests.builders.engines import make_request
from tests.builders.gpu_engines import InterpretedHarness
from tests.builders.peft_models import make_tiny_llama

CONFIG = EngineConfig(backend="gpu", pool_bytes=1 << 21, block_size=8, max_num_seqs=4)
NUM_TOKENS = 3


class HealthyRunner(GpuRunner):
    def spoil(self, row: Tensor) -> None:
        """What happens to the culprit's logits from its second token on."""

    def forward(self, layout: StepLayout) -> tuple[Tensor, list[Tensor]]:
        logits, sampling = super().forward(layout)
        for sequence, row in zip(layout.sampling, logits, strict=True):
            if sequence.request_id == "culprit" and sequence.num_tokens > 4:
                self.spoil(row)
        return logits, sampling


class NanRunner(HealthyRunner):
    def spoil(self, row: Tensor) -> None:
        row[7] = torch.nan


class FailingRunner(HealthyRunner):
    def spoil(self, row: Tensor) -> None:
        raise RuntimeError("out of luck")


def requests() -> list[EngineRequest]:
    names = ("first", "culprit", "last")
    return [
        make_request(name, [9 * i + 3, 5, 6, 7], max_tokens=NUM_TOKENS, temperature=i / 2, seed=i)
        for i, name in enumerate(names)
    ]


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_llama(tmp_path_factory.mktemp("blast") / "base", num_hidden_layers=1)


def run(base: Path, store: Path, runner: type[GpuRunner]) -> dict[str, tuple[list[int], str]]:
    """Each request's tokens, and how it ended."""
    harness = InterpretedHarness(base, store, CONFIG, runner=runner)
    outputs = harness.run(requests())
    harness.close()
    assert harness.core.scheduler.num_available_pages == harness.core.pool.num_pages
    answers = {}
    for request_id, parts in outputs.items():
        end = parts[-1]
        assert end.finish_reason is not None
        tokens = [token_id for part in parts for token_id in part.token_ids]
        answers[request_id] = tokens, end.error.code if end.error else end.finish_reason.value
    return answers


@pytest.fixture(scope="module")
def quiet(base: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[list[int], str]]:
    return run(base, tmp_path_factory.mktemp("quiet"), HealthyRunner)


@pytest.mark.parametrize(
    ("runner", "code"), [(NanRunner, "nonfinite_logits"), (FailingRunner, "internal_error")]
)
def test_a_row_that_breaks_on_the_device_ends_its_own_request(
    base: Path,
    tmp_path: Path,
    quiet: dict[str, tuple[list[int], str]],
    runner: type[GpuRunner],
    code: str,
) -> None:
    found = run(base, tmp_path, runner)
    healthy, _ = quiet["culprit"]
    assert len(healthy) == NUM_TOKENS
    assert found == {**quiet, "culprit": (healthy[:1], code)}


def test_control_without_the_check_a_nan_becomes_a_token(
    base: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "engine.gpu_runner.are_finite",
        lambda logits: torch.ones(len(logits), dtype=torch.bool),
    )
    tokens, ending = run(base, tmp_path, NanRunner)["culprit"]
    assert (len(tokens), ending) == (NUM_TOKENS, "length")
