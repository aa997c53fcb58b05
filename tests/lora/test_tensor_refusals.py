"""A file whose tensors do not fit the base, or the configuration, is refused as a whole."""

from __future__ import annotations

import pytest

from lora.base_spec import MODULES
from tests.builders.adapters import (
    HEAD,
    TINY_BASE,
    ManifestReader,
    Tensors,
    lora_tensors,
    plain_config,
    renamed,
    zeros,
)
from tests.builders.refusals import refused
from tests.builders.refused_adapters import Q0, REFUSED_TENSORS

PLAIN = lora_tensors()
A0, B0 = f"{Q0}.lora_A.weight", f"{Q0}.lora_B.weight"


def without(*names: str) -> Tensors:
    return {name: tensor for name, tensor in PLAIN.items() if name not in names}


def also(name: str, *shape: int) -> Tensors:
    return {**PLAIN, name: zeros(shape)}


@pytest.mark.parametrize("gone", [A0, B0])
def test_one_side_of_a_pair(read: ManifestReader, gone: str) -> None:
    with refused("tensor_pair_incomplete") as refusal:
        read(tensors=without(gone))
    assert refusal.codes == {"tensor_pair_incomplete"}


@pytest.mark.parametrize(
    ("name", "shape"),
    [
        pytest.param(A0, (8, 128), id="A of a wider model"),
        pytest.param(A0, (64, 8), id="A transposed"),
        pytest.param(B0, (32, 8), id="B of one shard"),
        pytest.param(B0, (8, 64), id="B transposed"),
        pytest.param(A0, (8,), id="one dimension"),
        pytest.param(A0, (8, 64, 1), id="three dimensions"),
        pytest.param(B0, (64, 8, 1, 1), id="convolution"),
        pytest.param(
            f"{HEAD}layers.0.self_attn.v_proj.lora_B.weight", (64, 8), id="v of all heads"
        ),
    ],
)
def test_shape_that_does_not_fit(read: ManifestReader, name: str, shape: tuple[int, ...]) -> None:
    with refused("shape_mismatch", param=name):
        read(tensors=also(name, *shape))


def test_a_shape_that_does_not_fit_shows_both(read: ManifestReader) -> None:
    with refused("shape_mismatch") as refusal:
        read(tensors=also(A0, 8, 128))
    (finding,) = [each for each in refusal.findings if each.code == "shape_mismatch"]
    assert (finding.expected, finding.actual) == ("[rank, 64]", "[8, 128]")


def test_ranks_that_differ(read: ManifestReader) -> None:
    with refused("rank_mismatch", param=B0):
        read(tensors=also(B0, 64, 4))
    with refused("rank_mismatch"):
        read(plain_config(r=4))
    with refused("rank_mismatch"):
        read(plain_config(rank_pattern={"v_proj": 4}))


@pytest.mark.parametrize("index", ["3", "00", "01", str(2**31), "9" * 40, "-1", "x", ""])
def test_layer_that_the_base_does_not_have(read: ManifestReader, index: str) -> None:
    with refused("layer_out_of_range"):
        read(tensors=renamed(PLAIN, "layers.2.", f"layers.{index}."))


def test_a_whole_model(read: ManifestReader) -> None:
    model = {
        "model.embed_tokens.weight": zeros((128, 64)),
        "model.layers.0.self_attn.q_proj.weight": zeros((64, 64)),
        "model.layers.0.input_layernorm.weight": zeros((64,)),
    }
    with refused("full_model_not_adapter") as refusal:
        read(tensors=model)
    assert "tensor_unexpected" not in refusal.codes


def test_a_whole_model_beside_an_adapter(read: ManifestReader) -> None:
    mixed = also("model.layers.0.self_attn.q_proj.weight", 64, 64)
    mixed["model.embed_tokens.weight"] = zeros((128, 64))
    with refused("tensor_unexpected"):
        read(tensors=mixed)


@pytest.mark.parametrize(
    ("module", "code"),
    [
        ("base_model.model.model.vision_tower.encoder.layers.0.self_attn.q_proj", "target_unknown"),
        ("base_model.model.audio_tower.layers.0.self_attn.q_proj", "target_unknown"),
        (f"{HEAD}layers.0.mlp.experts.3.gate_proj", "target_unknown"),
        (f"{HEAD}layers.0.mlp.experts", "target_unknown"),
        (f"{HEAD}layers.0.mlp.experts.base_layer", "target_unknown"),
        (f"{HEAD}layers.0.self_attn.Wqkv", "target_unknown"),
        (f"{HEAD}layers.0.mlp.q_proj", "target_unknown"),
        (f"{HEAD}layers.0.q_proj", "target_unknown"),
        ("base_model.model.transformer.h.0.attn.c_attn", "target_unknown"),
        ("base_model.model.q_proj", "tensor_unexpected"),
        ("base_model.model.encoder.layers.0.self_attn.q_proj", "tensor_unexpected"),
        ("base_model.model.model.model.layers.0.self_attn.q_proj", "tensor_unexpected"),
        (f"{HEAD}lm_head", "tensor_unexpected"),
        ("base_model.model.vision.lm_head", "target_unknown"),
        (f"{HEAD}embed_tokens", "target_unsupported"),
        (f"{HEAD}norm", "target_unsupported"),
    ],
)
def test_module_that_the_base_does_not_have(read: ManifestReader, module: str, code: str) -> None:
    pair = {f"{module}.lora_A.weight": zeros((8, 64)), f"{module}.lora_B.weight": zeros((64, 8))}
    with refused(code):
        read(tensors={**PLAIN, **pair})
    with refused(code):
        read(tensors=pair)


@pytest.mark.parametrize(
    ("name", "shape", "code"),
    REFUSED_TENSORS,
)
def test_tensor_that_is_no_lora_matrix(
    read: ManifestReader, name: str, shape: tuple[int, ...], code: str
) -> None:
    with refused(code, param=name):
        read(tensors=also(name, *shape))


def test_mlx_is_told_by_its_names_even_where_shapes_fit(read: ManifestReader) -> None:
    square = {
        f"model.layers.0.self_attn.q_proj.lora_{side}": zeros((64, 64)) for side in ("a", "b")
    }
    with refused("format_mlx_unsupported") as refusal:
        read(plain_config(r=64), square)
    assert "tensor_unexpected" not in refusal.codes


def test_half_of_the_names_under_another_prefix(read: ManifestReader) -> None:
    half = renamed(PLAIN, f"{HEAD}layers.2.", "model.layers.2.")
    with refused("tensor_unexpected"):
        read(tensors=half)
    half = renamed(PLAIN, f"{HEAD}layers.2.", f"{HEAD}language_model.layers.2.")
    with refused("tensor_unexpected"):
        read(tensors=half)


def test_two_names_for_one_matrix(read: ManifestReader) -> None:
    twice = also(A0.replace("q_proj", "_orig_mod.q_proj"), 8, 64)
    with refused("tensor_duplicate"):
        read(tensors=twice)


def test_two_adapters_in_one_file(read: ManifestReader) -> None:
    named = renamed(renamed(PLAIN, "lora_A.", "lora_A.first."), "lora_B.", "lora_B.first.")
    with refused("multiple_adapters"):
        read(tensors={**named, **renamed(named, ".first.", ".second.")})
    with refused("multiple_adapters"):
        read(tensors={**PLAIN, **renamed(lora_tensors(["mlp.up_proj"]), ".weight", ".x.weight")})


@pytest.mark.parametrize(
    "changes",
    [
        {"target_modules": ["q_proj", "v_proj", "o_proj"]},
        {"target_modules": "all-linear"},
        {"target_modules": r".*\.(q|v|up)_proj"},
        {"target_modules": [f"model.layers.0.{module}" for module in MODULES]},
    ],
)
def test_configured_target_without_tensors(
    read: ManifestReader, changes: dict[str, object]
) -> None:
    partial = lora_tensors(["self_attn.q_proj", "self_attn.v_proj"], layers=[0])
    with refused("tensor_missing"):
        read(plain_config(**changes), partial)


def test_a_save_that_was_cut_off(read: ManifestReader) -> None:
    with refused("tensor_missing") as refusal:
        read(tensors=lora_tensors(layers=range(TINY_BASE.num_layers - 1)))
    (finding,) = [each for each in refusal.findings if each.code == "tensor_missing"]
    assert "layers.2.self_attn.q_proj, layers.2.self_attn.v_proj" in finding.message


@pytest.mark.parametrize(
    "changes",
    [
        {"target_modules": ["q_proj"]},
        {"target_modules": r".*\.q_proj"},
        {"exclude_modules": ["v_proj"]},
        {"exclude_modules": r".*\.v_proj"},
        {"layers_to_transform": [0, 1]},
        {"layers_to_transform": 0},
        {"target_modules": ["model.layers.0.self_attn.q_proj"]},
    ],
)
def test_tensors_outside_the_configured_targets(
    read: ManifestReader, changes: dict[str, object]
) -> None:
    with refused("tensor_unexpected"):
        read(plain_config(**changes))
