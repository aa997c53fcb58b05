"""SmolLM2 itself, with its own weights: every variant gives PEFT's logits.

A batch of forms of every kind; with TEST_FAULTS=soak every variant alone, and beside three others
and the base.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from app.demo.base_model import ensure_base_model
from engine.config import EngineConfig
from tests.builders.fused_models import fuse
from tests.builders.mlx_adapters import to_mlx
from tests.builders.parity import BASE, Parity
from tests.builders.peft_models import FORMS, FUSED_FORMS, TIED_FORMS, VARIANTS
from tests.corpus.conftest import Verdict

MAX_LOGIT_ERROR = 1e-3
VOCAB_SIZE = 49152
SPREAD = 0.02
EVERY: dict[str, Mapping[str, Any]] = {**VARIANTS, **FORMS, **TIED_FORMS}
FEW = ("dora", "head", "embedding", "dora_saved_norm_and_tokens", "lora_bias", "patterns")
CONFIG = EngineConfig(pool_bytes=1 << 30)
every_variant = pytest.mark.skipif(
    os.environ.get("TEST_FAULTS") != "soak", reason="minutes: only where TEST_FAULTS=soak"
)


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return ensure_base_model(tmp_path_factory.mktemp("real") / "SmolLM2-135M-Instruct")


@pytest.fixture(scope="module")
def parity(base: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Parity]:
    root = tmp_path_factory.mktemp("variants")
    made = Parity(root, base, CONFIG, VOCAB_SIZE, keeps_models=False)
    yield made
    made.close()


def trained(parity: Parity, names: list[str]) -> list[str]:
    """These variants, made where they are not yet."""
    for name in names:
        if name not in parity.folders:
            parity.train(name, spread=SPREAD, **EVERY[name])
    return names


def judge(verdict: Verdict, errors: Mapping[str, float]) -> None:
    for error in errors.values():
        verdict("accepted and PEFT-equal", error < MAX_LOGIT_ERROR)
    assert max(errors.values()) < MAX_LOGIT_ERROR, errors


def test_forms_on_the_real_base_in_one_batch(parity: Parity, verdict: Verdict) -> None:
    judge(verdict, parity.errors([BASE, *trained(parity, list(FEW))], max_tokens=3))


@every_variant
@pytest.mark.parametrize("variant", EVERY)
def test_a_variant_on_the_real_base_alone_and_among_others(
    parity: Parity, verdict: Verdict, variant: str
) -> None:
    names = list(EVERY)
    place = names.index(variant)
    others = trained(parity, [names[(place + step) % len(names)] for step in (0, 1, 4, 6)])
    alone = parity.errors([variant], max_tokens=3)
    mixed = parity.errors([BASE, *others], max_tokens=3)
    judge(verdict, alone | {f"{name}, mixed": error for name, error in mixed.items()})


@every_variant
def test_fused_variants_on_the_real_base(base: Path, tmp_path: Path, verdict: Verdict) -> None:
    twin = fuse(base, tmp_path / "fused-base")
    parity = Parity(tmp_path, base, CONFIG, VOCAB_SIZE, trained=twin, keeps_models=False)
    for name, options in FUSED_FORMS.items():
        parity.train(name, spread=SPREAD, **options)
    errors = {name: parity.errors([name], max_tokens=3)[name] for name in FUSED_FORMS}
    errors |= {
        f"{name}, mixed": error
        for name, error in parity.errors([BASE, *FUSED_FORMS], max_tokens=3).items()
    }
    parity.close()
    judge(verdict, errors)


@every_variant
@pytest.mark.parametrize("use_dora", [False, True])
def test_an_mlx_variant_on_the_real_base(
    parity: Parity, verdict: Verdict, tmp_path: Path, use_dora: bool
) -> None:
    name = f"mlx, dora {use_dora}"
    config = {"r": 8, "lora_alpha": 16, "target_modules": "all-linear", "use_dora": use_dora}
    parity.train(f"peft of {name}", spread=SPREAD, **config)
    peft = parity.folders[f"peft of {name}"]
    parity.add(name, peft, to_mlx(peft, tmp_path / "mlx", num_layers=-1))
    alone = parity.errors([name], max_tokens=3)
    mixed = parity.errors([BASE, name, *trained(parity, ["dora", "head", "plain"])], max_tokens=3)
    judge(verdict, alone | {f"{each}, mixed": error for each, error in mixed.items()})
