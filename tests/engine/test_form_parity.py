"""DoRA, biases, embeddings, heads, norms and trained tokens: PEFT's logits, in one mixed batch."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from engine.config import EngineConfig
from kernels.interface import LoraSite
from lora.sites import SITES
from lora.store import WEIGHTS_FILE
from lora.weights import LoraWeights
from tests.builders.engines import make_request, tokens_of
from tests.builders.parity import BASE, Parity, train_all
from tests.builders.peft_models import (
    BIAS_FORMS,
    FORMS,
    TIED_FORMS,
    VARIANTS,
    VOCAB_SIZE,
    make_tiny_llama,
)

MAX_LOGIT_ERROR = 1e-3
ALL_FORMS = {**FORMS, **TIED_FORMS, **BIAS_FORMS}
CONFIG = EngineConfig(pool_bytes=1 << 24, max_num_batched_tokens=50)


@pytest.fixture(scope="module")
def parity(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Parity]:
    """A tied base with biases, on which every form means something."""
    root = tmp_path_factory.mktemp("forms")
    base = make_tiny_llama(
        root / "base", tie_word_embeddings=True, attention_bias=True, mlp_bias=True
    )
    made = Parity(root, base, CONFIG, VOCAB_SIZE)
    train_all(made, {"plain": VARIANTS["plain"], **ALL_FORMS})
    yield made
    made.close()


def test_logits_of_every_form_equal_peft_in_one_mixed_batch(parity: Parity) -> None:
    errors = parity.errors([BASE, "plain", *ALL_FORMS])
    assert max(errors.values()) < MAX_LOGIT_ERROR, errors


def without_forms(weights: LoraWeights) -> LoraWeights:
    """What remains if all but LoRA on the linears of layers is passed over."""
    linears = {site.name for site in SITES}
    sites = {
        key: LoraSite(site.a, site.parts)
        for key, site in weights.sites.items()
        if key[1] in linears
    }
    return LoraWeights(sites, weights.num_bytes)


def test_control_a_form_that_is_passed_over_is_noticed(
    parity: Parity, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        parity.harness.core.residency, "weights", parity.harness.core.residency.weights
    )
    parity.serve_changed(without_forms)
    errors = parity.errors(["plain", *ALL_FORMS], max_tokens=2)
    assert errors.pop("plain") < MAX_LOGIT_ERROR
    assert min(errors.values()) > 10 * MAX_LOGIT_ERROR, errors


def test_an_adapter_of_another_base_s_embedding_is_never_served(
    parity: Parity, tmp_path: Path
) -> None:
    folder = Path(shutil.copytree(parity.folders["embedding"], tmp_path / "other"))
    tensors = load_file(folder / WEIGHTS_FILE)
    (copy,) = [name for name in tensors if name.endswith("embed_tokens.base_layer.weight")]
    tensors[copy][3, 3] += 0.5
    save_file(tensors, folder / WEIGHTS_FILE)
    request = make_request("it", [5, 6], adapter=parity.harness.publish(folder))
    (output,) = parity.harness.run([request])["it"]
    assert output.error is not None and output.error.code == "adapter_corrupt"


def test_rows_of_the_base_and_of_plain_adapters_keep_their_bits_beside_every_form(
    parity: Parity, tmp_path: Path
) -> None:
    config = EngineConfig(pool_bytes=1 << 24, batch_invariant=True)
    recorded = []
    for neighbours in ([], list(ALL_FORMS)):
        made = Parity(tmp_path / str(len(neighbours)), parity.trained, config, VOCAB_SIZE)
        for name in ["plain", *neighbours]:
            made.add(name, parity.folders[name])
        names: list[str] = [BASE, "plain", *neighbours]
        prompt = parity.prompt(1, 20)
        requests = [
            make_request(
                name, prompt, adapter=None if name == BASE else made.ref(name), max_tokens=3
            )
            for name in names
        ]
        tokens_of(made.harness.run(requests))
        recorded.append([made.harness.logits(name) for name in (BASE, "plain")])
        made.close()
    for alone, beside in zip(*recorded, strict=True):
        assert torch.equal(alone, beside)
