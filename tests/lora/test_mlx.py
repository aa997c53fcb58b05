"""MLX's adapters are told by their fields; what is not clear is refused and never guessed."""

from __future__ import annotations

from typing import Any

import pytest

from lora.findings import REFUSALS
from tests.builders.adapters import ManifestReader, Tensors, lora_tensors, zeros
from tests.builders.refusals import refused, warnings_of

Q, V = "self_attn.q_proj", "self_attn.v_proj"
WIDTHS = {Q: 64, V: 32}


def mlx_config(**changes: Any) -> dict[str, Any]:
    return {
        "fine_tune_type": "lora",
        "num_layers": 2,
        "lora_parameters": {"rank": 8, "scale": 20.0, "dropout": 0.0},
        "model": "tenfold/tiny",
        "train": True,
        "iters": 600,
        **changes,
    }


def parameters(**changes: Any) -> dict[str, Any]:
    return {"lora_parameters": {"rank": 8, "scale": 20.0, "dropout": 0.0, **changes}}


def mlx_tensors(
    layers: tuple[int, ...] = (1, 2), head: str = "model.", *, dora: bool = False
) -> Tensors:
    tensors: Tensors = {}
    for layer in layers:
        for module, width in WIDTHS.items():
            path = f"{head}layers.{layer}.{module}"
            tensors |= {f"{path}.lora_a": zeros((64, 8)), f"{path}.lora_b": zeros((8, width))}
            if dora:
                tensors[f"{path}.m"] = zeros((width,))
    return tensors


@pytest.mark.parametrize(
    ("changes", "layers"),
    [
        ({}, (1, 2)),
        ({"num_layers": -1}, (0, 1, 2)),
        ({"num_layers": 0}, (0, 1, 2)),
        ({"num_layers": 3}, (0, 1, 2)),
        (parameters(keys=[Q, V]), (1, 2)),
        (parameters(alpha=16), (1, 2)),
        ({"fine_tune_type": "lora", "wandb": None, "optimizer": "adamw"}, (1, 2)),
    ],
)
def test_scale_is_taken_as_it_is(
    read: ManifestReader, changes: dict[str, Any], layers: tuple[int, ...]
) -> None:
    manifest = read(mlx_config(**changes), mlx_tensors(layers))
    assert {(module.layer, module.module) for module in manifest.modules} == {
        (layer, module) for layer in layers for module in WIDTHS
    }
    assert {(module.rank, module.scale) for module in manifest.modules} == {(8, 20.0)}
    assert manifest.warnings == ()


def test_dora_brings_a_magnitude(read: ManifestReader) -> None:
    config = mlx_config(fine_tune_type="dora")
    manifest = read(config, mlx_tensors(dora=True))
    assert all(module.magnitude is not None for module in manifest.modules)
    with refused("tensor_pair_incomplete"):
        read(config, mlx_tensors())
    with refused("tensor_pair_incomplete"):
        read(mlx_config(), mlx_tensors(dora=True))


def test_another_base_and_quantised_bases_are_told(read: ManifestReader) -> None:
    manifest = read(mlx_config(model="mlx-community/tiny-4bit"), mlx_tensors())
    assert warnings_of(manifest) == {"base_model_unverified", "trained_on_quantized_base"}
    with refused("base_model_mismatch"):
        read(mlx_config(model="other/base"), mlx_tensors(), known_bases=["other/base"])


@pytest.mark.parametrize(
    "changes",
    [
        {"fine_tune_type": "full"},
        {"fine_tune_type": 7},
        {"lora_parameters": None},
        {"lora_parameters": {"rank": 8}},
        {"lora_parameters": {"rank": 8, "alpha": 16}},
        parameters(rank=0),
        parameters(rank="8"),
        parameters(scale="20"),
        parameters(scale=True),
        parameters(keys="q_proj"),
        parameters(keys=["q_proj", "v_proj"]),
        parameters(switch=3),
        {"num_layers": None},
        {"num_layers": 2.0},
        {"next_option": 1},
        {"peft_type": "LORA"},
    ],
)
def test_an_unclear_configuration(read: ManifestReader, changes: dict[str, Any]) -> None:
    with refused("format_mlx_unsupported"):
        read(mlx_config(**changes), mlx_tensors())


@pytest.mark.parametrize(
    ("tensors", "code"),
    [
        (lora_tensors(), "format_mlx_unsupported"),
        ({**mlx_tensors(), "model.embed_tokens.lora_a": zeros((128, 8))}, "format_mlx_unsupported"),
        ({**mlx_tensors(), "model.layers.1.mlp.switch.lora_a": zeros((8,))}, None),
        (mlx_tensors((0, 1, 2)), "tensor_unexpected"),
        (mlx_tensors((2,)), "tensor_missing"),
        (mlx_tensors((2, 3)), "layer_out_of_range"),
        ({**mlx_tensors(), f"model.layers.2.{Q}.lora_a": zeros((8, 64))}, "shape_mismatch"),
        ({**mlx_tensors(), f"model.layers.2.{Q}.lora_a": zeros((64, 4))}, "shape_mismatch"),
        (mlx_tensors((1,)) | mlx_tensors((2,), "language_model.model."), "tensor_unexpected"),
        ({**mlx_tensors(), f"model.layers.2.{Q}.lora_a": zeros((64, 8), "F64")}, None),
    ],
)
def test_tensors_that_do_not_fit(read: ManifestReader, tensors: Tensors, code: str | None) -> None:
    wanted = code or ("dtype_unsupported" if "F64" in str(tensors) else "format_mlx_unsupported")
    assert wanted in REFUSALS
    with refused(wanted):
        read(mlx_config(), tensors)
