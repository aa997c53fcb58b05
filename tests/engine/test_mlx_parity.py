"""Adapters in MLX's format: the logits of the PEFT adapter that they were before."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from engine.config import EngineConfig
from lora.manifest import read_manifest
from lora.store import CONFIG_FILE, WEIGHTS_FILE
from lora.weights import load_weights
from tests.builders.mlx_adapters import to_mlx
from tests.builders.parity import BASE, Parity
from tests.builders.peft_models import VOCAB_SIZE, make_adapter, make_tiny_llama

MAX_LOGIT_ERROR = 1e-3
# q_proj is square: taken for the other way round, it would fit.
ADAPTERS = {
    "q and v of the last two layers": (
        {"r": 8, "lora_alpha": 160, "target_modules": ["q_proj", "v_proj"]},
        [1, 2],
    ),
    "every linear": ({"r": 4, "lora_alpha": 40, "target_modules": "all-linear"}, [0, 1, 2]),
    "dora": (
        {"r": 4, "lora_alpha": 8, "use_dora": True, "target_modules": ["q_proj", "down_proj"]},
        [0, 1, 2],
    ),
}


@pytest.fixture(scope="module")
def parity(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Parity]:
    root = tmp_path_factory.mktemp("mlx")
    base = make_tiny_llama(root / "base", attention_bias=True)
    made = Parity(root, base, EngineConfig(pool_bytes=1 << 24), VOCAB_SIZE)
    for seed, (name, (config, layers)) in enumerate(ADAPTERS.items()):
        own = {} if len(layers) == 3 else {"layers_to_transform": layers}
        peft = make_adapter(base, root / name, seed=seed, spread=0.03, **config, **own)
        made.add(name, peft, to_mlx(peft, root / f"mlx {name}", num_layers=len(layers)))
    yield made
    made.close()


def test_logits_are_those_of_the_peft_adapter(parity: Parity) -> None:
    errors = parity.errors([BASE, *ADAPTERS])
    assert max(errors.values()) < MAX_LOGIT_ERROR, errors


@pytest.mark.parametrize("wrong", [{"rank": 8, "scale": 2.5}, {"rank": 8, "scale": 160}])
def test_control_another_scale_is_noticed(
    parity: Parity, tmp_path: Path, wrong: dict[str, float]
) -> None:
    name = "q and v of the last two layers"
    folder = to_mlx(parity.folders[name], tmp_path / "x", num_layers=2, lora_parameters=wrong)
    parity.add("wrong", parity.folders[name], folder)
    assert parity.errors(["wrong"])["wrong"] > 10 * MAX_LOGIT_ERROR


def test_what_is_read_is_what_peft_saved(parity: Parity) -> None:
    name = "every linear"
    base = parity.harness.base
    sites = []
    for folder in (parity.folders[name], parity.harness.store.fetch(parity.ref(name).locator)):
        weights = folder / WEIGHTS_FILE
        manifest = read_manifest((folder / CONFIG_FILE).read_bytes(), weights, base)
        tensors = parity.harness.runner.base_tensors
        sites.append(load_weights(manifest, weights, base, tensors).sites)
    assert sites[0].keys() == sites[1].keys()
    for key, site in sites[0].items():
        assert site.a.equal(sites[1][key].a)
        for part, other in zip(site.parts, sites[1][key].parts, strict=True):
            assert part.b.equal(other.b) and part.b.stride() == other.b.stride()
