"""SmolLM2 itself: one batch of the base and of forms of every kind, against PEFT."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from app.demo.base_model import ensure_base_model
from engine.config import EngineConfig
from tests.builders.parity import BASE, Parity
from tests.corpus.conftest import Verdict

MAX_LOGIT_ERROR = 1e-3
VARIANTS = {
    "dora": {"r": 8, "use_dora": True, "target_modules": ["q_proj", "v_proj", "down_proj"]},
    "head": {"r": 8, "target_modules": ["lm_head", "o_proj"]},
    "embedding": {"r": 8, "target_modules": ["embed_tokens", "up_proj"]},
    "norms and tokens": {
        "r": 8,
        "target_modules": ["q_proj"],
        "modules_to_save": ["norm"],
        "trainable_token_indices": [5, 9, 77],
    },
    "lora_bias": {"r": 8, "lora_bias": True, "target_modules": ["k_proj", "gate_proj"]},
}


@pytest.fixture(scope="module")
def parity(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Parity]:
    root = tmp_path_factory.mktemp("real")
    base = ensure_base_model(root / "SmolLM2-135M-Instruct")
    made = Parity(root, base, EngineConfig(pool_bytes=1 << 29), 49152, keeps_models=False)
    for name, config in VARIANTS.items():
        made.train(name, spread=0.02, **config)
    yield made
    made.close()


def test_forms_on_the_real_base_in_one_batch(parity: Parity, verdict: Verdict) -> None:
    errors = parity.errors([BASE, *VARIANTS], max_tokens=3)
    for error in errors.values():
        verdict("accepted and PEFT-equal", error < MAX_LOGIT_ERROR)
    assert max(errors.values()) < MAX_LOGIT_ERROR, errors
