"""What adapters have beside A and B, through the Triton kernels: the CPU backend's logits.

Prompts and decodes share steps, so that the head's plan is one of its own; then all decode, padded
to a bucket, and the plan of the rows serves the head too.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor

from engine.config import EngineConfig
from engine.forward_batch import StepLayout
from engine.gpu_runner import GpuRunner
from engine.messages import EngineRequest
from tests.builders.engines import EngineHarness, make_request, tokens_of
from tests.builders.gpu_engines import InterpretedHarness
from tests.builders.peft_models import BIAS_FORMS, FORMS, VARIANTS, make_adapter, make_tiny_llama

CPU = EngineConfig(pool_bytes=1 << 22, block_size=8, max_num_batched_tokens=24, max_num_seqs=10)
CHOSEN = ["dora_embeddings", "embedding_and_head", "saved_norms", "saved_head", "tokens_of_both"]
ADAPTERS = {
    "plain": VARIANTS["plain"],
    "bias_all_and_lora_bias": BIAS_FORMS["bias_all_and_lora_bias"],
    "dora_bias_all": BIAS_FORMS["dora_bias_all"],
    **{name: FORMS[name] for name in CHOSEN},
}


class RecordingRunner(GpuRunner):
    """Keeps each sampled row's logits by request."""

    def forward(self, layout: StepLayout) -> tuple[Tensor, list[Tensor]]:
        logits, sampling = super().forward(layout)
        recorded = self.__dict__.setdefault("recorded", {})
        for sequence, row in zip(layout.sampling, logits, strict=True):
            recorded.setdefault(sequence.request_id, []).append(row.clone())
        return logits, sampling


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    root = tmp_path_factory.mktemp("forms")
    base = make_tiny_llama(
        root / "base",
        num_hidden_layers=2,
        tie_word_embeddings=True,
        attention_bias=True,
        mlp_bias=True,
    )
    adapters = {
        name: make_adapter(base, root / name, seed=seed, **options)
        for seed, (name, options) in enumerate(ADAPTERS.items())
    }
    return {"base": base, **adapters}


def requests_for(harness: EngineHarness, folders: dict[str, Path]) -> list[EngineRequest]:
    return [
        make_request(
            name,
            [5, 9, 3, *((11 * number + i) % 100 + 3 for i in range(2 * number))],
            adapter=None if name == "base" else harness.publish(folder),
            max_tokens=3,
        )
        for number, (name, folder) in enumerate(folders.items())
    ]


def test_logits_of_every_form_are_the_cpu_backends(
    folders: dict[str, Path], tmp_path: Path
) -> None:
    cpu = EngineHarness(folders["base"], tmp_path / "store", CPU)
    gpu = InterpretedHarness(
        folders["base"],
        tmp_path / "store",
        replace(CPU, backend="gpu"),
        max_in_flight=1,
        runner=RecordingRunner,
    )
    tokens = [tokens_of(harness.run(requests_for(harness, folders))) for harness in (cpu, gpu)]
    assert tokens[1] == tokens[0]
    for name in folders:
        got = torch.stack(gpu.gpu.recorded[name])
        assert torch.allclose(got, cpu.logits(name), rtol=1e-3, atol=1e-3), name
    cpu.close()
    gpu.close()
