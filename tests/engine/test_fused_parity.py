"""Adapters of fused projections on a base that keeps them apart: the fused model's logits."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest

from engine.config import EngineConfig
from kernels.interface import LoraSite
from lora.weights import LoraWeights
from tests.builders.fused_models import fuse
from tests.builders.parity import BASE, Parity, train_all
from tests.builders.peft_models import FUSED_FORMS, VOCAB_SIZE, make_tiny_llama

MAX_LOGIT_ERROR = 1e-3


@pytest.fixture(scope="module")
def parity(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Parity]:
    root = tmp_path_factory.mktemp("fused")
    base = make_tiny_llama(root / "base")
    config = EngineConfig(pool_bytes=1 << 24)
    made = Parity(root, base, config, VOCAB_SIZE, trained=fuse(base, root / "fused-base"))
    train_all(made, FUSED_FORMS)
    yield made
    made.close()


def test_logits_are_those_of_the_fused_model(parity: Parity) -> None:
    errors = parity.errors([BASE, *FUSED_FORMS])
    assert max(errors.values()) < MAX_LOGIT_ERROR, errors


def in_another_order(weights: LoraWeights) -> LoraWeights:
    """K's part of B where V's should be, which has the same shape."""

    def swapped(site: LoraSite) -> LoraSite:
        if len(site.parts) != 3:
            return site
        query, key, value = site.parts
        return replace(site, parts=(query, replace(key, b=value.b), replace(value, b=key.b)))

    sites = {key: swapped(site) for key, site in weights.sites.items()}
    return LoraWeights(sites, weights.num_bytes)


def test_control_parts_in_another_order_are_noticed(
    parity: Parity, monkeypatch: pytest.MonkeyPatch
) -> None:
    residency = parity.harness.core.residency
    monkeypatch.setattr(residency, "weights", residency.weights)
    parity.serve_changed(in_another_order)
    errors = parity.errors(["fused", "fused_patterns", "fused_dora"], max_tokens=2)
    assert min(errors.values()) > 10 * MAX_LOGIT_ERROR, errors
