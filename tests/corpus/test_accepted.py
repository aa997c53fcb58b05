"""Every variant that is accepted gives PEFT's logits: alone, and beside three others and the base.

Each case is counted; `conftest.py` prints the sum.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from engine.config import EngineConfig
from tests.builders.fused_models import fuse
from tests.builders.mlx_adapters import to_mlx
from tests.builders.parity import BASE, Parity
from tests.builders.peft_models import FUSED_FORMS, VOCAB_SIZE, make_adapter, make_tiny_llama
from tests.corpus.conftest import Verdict
from tests.corpus.worlds import WORLDS

MAX_LOGIT_ERROR = 1e-3
CASES = [(world, variant) for world, each in WORLDS.items() for variant in each.variants]
CONFIG = EngineConfig(pool_bytes=1 << 30)


@pytest.fixture(scope="module")
def parities(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Parity]]:
    """One for each world, made when it is first asked for."""
    made: dict[str, Parity] = Made(tmp_path_factory.mktemp("corpus"))
    yield made
    for parity in made.values():
        parity.close()


class Made(dict[str, Parity]):
    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def __missing__(self, name: str) -> Parity:
        world = WORLDS[name]
        folder = self._folder / name
        base = world.make_base(folder / "base")
        self[name] = Parity(folder, base, CONFIG, world.vocab_size, keeps_models=False)
        for variant, config in world.variants.items():
            self[name].train(variant, **world.options, **config)
        return self[name]


@pytest.mark.parametrize(("world", "variant"), CASES)
def test_a_variant_alone_and_among_others(
    parities: dict[str, Parity], verdict: Verdict, world: str, variant: str
) -> None:
    names = list(WORLDS[world].variants)
    place = names.index(variant)
    others = [names[(place + step) % len(names)] for step in (1, 4, 6)]
    errors = parities[world].errors([variant], max_tokens=3)
    errors |= {
        f"{name}, mixed": error
        for name, error in parities[world].errors([BASE, variant, *others], max_tokens=3).items()
    }
    is_right = max(errors.values()) < MAX_LOGIT_ERROR
    verdict("accepted and PEFT-equal", is_right)
    assert is_right, errors


@pytest.mark.parametrize("variant", FUSED_FORMS)
def test_a_fused_variant(tmp_path: Path, verdict: Verdict, variant: str) -> None:
    base = make_tiny_llama(tmp_path / "base", tie_word_embeddings=True)
    trained = fuse(base, tmp_path / "fused-base")
    parity = Parity(tmp_path, base, CONFIG, VOCAB_SIZE, trained=trained)
    parity.train(variant, **FUSED_FORMS[variant])
    errors = parity.errors([BASE, variant])
    parity.close()
    verdict("accepted and PEFT-equal", max(errors.values()) < MAX_LOGIT_ERROR)
    assert max(errors.values()) < MAX_LOGIT_ERROR, errors


@pytest.mark.parametrize("use_dora", [False, True])
def test_an_mlx_variant(tmp_path: Path, verdict: Verdict, use_dora: bool) -> None:
    base = make_tiny_llama(tmp_path / "base")
    parity = Parity(tmp_path, base, CONFIG, VOCAB_SIZE)
    config = {"r": 8, "lora_alpha": 160, "target_modules": "all-linear", "use_dora": use_dora}
    peft = make_adapter(base, tmp_path / "peft", seed=1, spread=0.03, **config)
    parity.add("mlx", peft, to_mlx(peft, tmp_path / "mlx", num_layers=-1))
    errors = parity.errors([BASE, "mlx"])
    parity.close()
    verdict("accepted and PEFT-equal", max(errors.values()) < MAX_LOGIT_ERROR)
    assert max(errors.values()) < MAX_LOGIT_ERROR, errors
