"""Adapters that people really have are accepted, with the rank and scale that PEFT gives them."""

from __future__ import annotations

import json
import math
from collections.abc import Callable

import pytest

from lora.base_spec import MODULES
from lora.manifest import AdapterManifest
from tests.builders.adapters import (
    ATTENTION,
    HEAD,
    ManifestReader,
    header_of,
    lora_tensors,
    plain_config,
    renamed,
    safetensors_bytes,
    without,
)
from tests.builders.refusals import refused, warnings_of

Q, V = ATTENTION


def scales_of(manifest: AdapterManifest) -> dict[str, float]:
    """Module -> its scale, which must be the same in every layer."""
    scales = {module.module: module.scale for module in manifest.modules}
    assert all(scales[module.module] == module.scale for module in manifest.modules)
    return scales


def test_plain_adapter_without_a_warning(read: ManifestReader) -> None:
    manifest = read()
    assert manifest.warnings == ()
    assert (manifest.base_name, manifest.max_rank) == ("tenfold/tiny", 8)
    assert [(each.layer, each.module) for each in manifest.modules] == [
        (layer, module) for layer in range(3) for module in ATTENTION
    ]
    assert manifest.num_params == 3 * 8 * (64 + 64 + 64 + 32)
    assert scales_of(manifest) == {Q: 2.0, V: 2.0}


def test_spans_are_absolute_offsets_of_the_tensors_bytes(read: ManifestReader) -> None:
    tensors = lora_tensors()
    manifest = read(tensors=tensors)
    content = read.weights.read_bytes()
    for module in manifest.modules:
        for span in (module.a, module.b):
            assert content[span.begin : span.end] == tensors[span.name].data
            assert (span.dtype, span.shape) == ("F32", tensors[span.name].shape)


def test_every_linear_in_canonical_order_whatever_the_files_order(read: ManifestReader) -> None:
    tensors = dict(sorted(lora_tensors(MODULES).items(), reverse=True))
    manifest = read(plain_config(target_modules="all-linear"), tensors)
    assert [each.module for each in manifest.modules] == list(MODULES) * 3


@pytest.mark.parametrize(
    ("changes", "modules", "layers"),
    [
        ({"target_modules": "ALL-linear"}, MODULES, None),
        (
            {"target_modules": sorted(module.rpartition(".")[2] for module in MODULES)},
            MODULES,
            None,
        ),
        ({"target_modules": ["self_attn.q_proj", "v_proj", "v_proj"]}, ATTENTION, None),
        ({"target_modules": r".*\.layers\.[01]\..*(q_proj|v_proj)"}, ATTENTION, [0, 1]),
        ({"target_modules": [f"model.layers.1.{module}" for module in ATTENTION]}, ATTENTION, [1]),
        ({"target_modules": None}, ATTENTION, None),
        (
            {"target_modules": "all-linear", "exclude_modules": ["mlp.up_proj", "k_proj"]},
            [each for each in MODULES if each not in ("mlp.up_proj", "self_attn.k_proj")],
            None,
        ),
        ({"exclude_modules": r".*\.0\..*"}, ATTENTION, [1, 2]),
        ({"exclude_modules": ["layers.0.self_attn.q_proj", "gone"]}, [V], None),
        ({"layers_to_transform": [1]}, ATTENTION, [1]),
        ({"layers_to_transform": 1, "layers_pattern": "layers"}, ATTENTION, [1]),
        ({"layers_to_transform": [0, 2], "layers_pattern": ["h", "layers"]}, ATTENTION, [0, 2]),
        ({"layers_to_transform": []}, ATTENTION, None),
    ],
)
def test_targets_of_every_form(
    read: ManifestReader,
    changes: dict[str, object],
    modules: list[str],
    layers: list[int] | None,
) -> None:
    tensors = lora_tensors(modules, layers=layers)
    if changes.get("exclude_modules") == ["layers.0.self_attn.q_proj", "gone"]:
        tensors |= lora_tensors([Q], layers=[1, 2])
    manifest = read(plain_config(**changes), tensors)
    assert len(manifest.modules) == len(tensors) // 2


def test_null_targets_what_peft_adapts_by_default_and_nothing_else(read: ManifestReader) -> None:
    config = plain_config(target_modules=None)
    with refused("tensor_unexpected"):
        read(config, lora_tensors(["self_attn.o_proj"]))
    with refused("tensor_unexpected"):
        read(config, lora_tensors([*ATTENTION, "mlp.up_proj"]))


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"lora_alpha": 16.0}, {Q: 2.0, V: 2.0}),
        ({"use_rslora": True}, {Q: 16 / math.sqrt(8), V: 16 / math.sqrt(8)}),
        ({"alpha_pattern": {"q_proj": 32}}, {Q: 4.0, V: 2.0}),
        ({"alpha_pattern": {"q_proj": 32, ".*": 8}}, {Q: 4.0, V: 1.0}),
        ({"alpha_pattern": {".*": 8, "q_proj": 32}}, {Q: 1.0, V: 1.0}),
        ({"alpha_pattern": {"self_attn": 8, "_proj": 8, "q_pro": 8}}, {Q: 2.0, V: 2.0}),
        ({"alpha_pattern": {r"layers\.\d+\.self_attn\.v_proj": 8}}, {Q: 2.0, V: 1.0}),
        ({"alpha_pattern": {"k_proj|v_proj": 8}}, {Q: 2.0, V: 1.0}),
        ({"alpha_pattern": {"^model.layers.[0-2].self_attn.v_proj": 8}}, {Q: 2.0, V: 1.0}),
        ({"alpha_pattern": {"[qv]_proj": 0.5}}, {Q: 0.0625, V: 0.0625}),
    ],
)
def test_scale_of_each_module(
    read: ManifestReader, changes: dict[str, object], expected: dict[str, float]
) -> None:
    assert scales_of(read(plain_config(**changes))) == expected


def test_patterns_of_rank_and_alpha_are_independent_and_rslora_takes_the_modules_rank(
    read: ManifestReader,
) -> None:
    tensors = lora_tensors(rank={Q: 8, V: 2})
    config = plain_config(rank_pattern={"v_proj": 2}, alpha_pattern={"q_proj": 32})
    assert scales_of(read(config, tensors)) == {Q: 4.0, V: 8.0}
    config = plain_config(rank_pattern={"v_proj": 2}, use_rslora=True)
    assert scales_of(read(config, tensors)) == {Q: 16 / math.sqrt(8), V: 16 / math.sqrt(2)}


def test_missing_rank_and_alpha_are_pefts_defaults(read: ManifestReader) -> None:
    manifest = read(without(plain_config(), "r", "lora_alpha"))
    assert scales_of(manifest) == {Q: 1.0, V: 1.0}


@pytest.mark.parametrize("alpha", [0, -16])
def test_alpha_zero_or_negative_is_a_warning(read: ManifestReader, alpha: int) -> None:
    manifest = read(plain_config(lora_alpha=alpha))
    assert scales_of(manifest) == {Q: alpha / 8, V: alpha / 8}
    assert warnings_of(manifest) == {"scaling_unusual"}


@pytest.mark.parametrize(
    "changes",
    [
        {"init_lora_weights": value}
        for value in (True, False, None, "gaussian", "orthogonal", "mica", "eva")
    ]
    + [
        {"bias": "lora_only"},
        {"bias": "all"},
        {"modules_to_save": []},
        {"modules_to_save": None},
        {"velora_config": {"num_groups": 4, "scale": 1.0}},
        {"eva_config": {"rho": 2.0}},
        {"lora_dropout": 0.7},
        {"inference_mode": False},
        {"revision": "main"},
        {"peft_version": "0.21.2"},
        {"runtime_config": {"ephemeral_gpu_offload": True}},
        {"qalora_group_size": 32},
        {"ensure_weight_tying": True},
        {"megatron_core": "megatron.core", "megatron_config": None},
        {"task_type": None},
        {"auto_mapping": {"base_model_class": "X", "parent_library": "transformers.models.llama"}},
        {
            "auto_mapping": {
                "base_model_class": "LlamaForCausalLM",
                "parent_library": "transformers.models.llama.modeling_llama",
                "unsloth_fixed": True,
            }
        },
        {"next_field": None, "next_flag": False, "next_list": [], "next_object": {}},
        {"layer_replication": None, "trainable_token_indices": None, "target_parameters": None},
        {"loftq_config": {}, "alpha_pattern": {}, "trainable_token_indices": {}},
        {"layers_pattern": [], "exclude_modules": [], "target_parameters": []},
    ],
)
def test_fields_that_change_nothing(read: ManifestReader, changes: dict[str, object]) -> None:
    manifest = read(plain_config(**changes))
    assert scales_of(manifest) == {Q: 2.0, V: 2.0}
    assert manifest.warnings == ()


def test_the_oldest_configurations_are_read(read: ManifestReader) -> None:
    config = {
        "base_model_name_or_path": "tenfold/tiny",
        "bias": "none",
        "enable_lora": None,
        "fan_in_fan_out": False,
        "inference_mode": True,
        "lora_alpha": 16,
        "lora_dropout": 0.05,
        "merge_weights": False,
        "modules_to_save": None,
        "peft_type": "LORA",
        "r": 8,
        "target_modules": ["q_proj", "v_proj"],
        "task_type": "CAUSAL_LM",
    }
    assert scales_of(read(config)) == {Q: 2.0, V: 2.0}


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        (None, {"base_model_unverified"}),
        ("", {"base_model_unverified"}),
        ("someone/else", {"base_model_unverified"}),
        ("/etc/passwd", {"base_model_unverified"}),
        ("http://169.254.169.254/latest", {"base_model_unverified"}),
        ("TenFold/Tiny", set()),
        (
            "unsloth/tiny-bnb-4bit",
            {"base_model_unverified", "trained_on_quantized_base"},
        ),
        ("x/tiny-GPTQ-Int4", {"base_model_unverified", "trained_on_quantized_base"}),
    ],
)
def test_the_bases_name_is_compared_and_never_followed(
    read: ManifestReader, name: str | None, expected: set[str]
) -> None:
    manifest = read(plain_config(base_model_name_or_path=name))
    assert warnings_of(manifest) == expected


def test_a_converted_initialisation_is_accepted_with_a_warning(read: ManifestReader) -> None:
    config = plain_config(init_lora_weights=True, corda_config={"corda_method": "kpm"})
    assert warnings_of(read(config)) == {"init_check_conversion"}


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (HEAD, "model."),
        (HEAD, ""),
        (HEAD, "base_model.model."),
        (HEAD, f"base_model.model.{HEAD}"),
        (HEAD, f"module.{HEAD}"),
        (HEAD, f"_orig_mod.{HEAD}"),
        (HEAD, "base_model.model._orig_mod.model."),
        (HEAD, f"{HEAD}language_model."),
        (HEAD, "base_model.model.language_model.model."),
        ("self_attn.", "_fsdp_wrapped_module.self_attn."),
        ("self_attn.", "_checkpoint_wrapped_module.self_attn."),
        ("layers.1.", "layers.1._checkpoint_wrapped_module."),
        (".weight", ".default.weight"),
    ],
)
def test_wrappers_of_trainers_are_taken_off(read: ManifestReader, old: str, new: str) -> None:
    manifest = read(tensors=renamed(lora_tensors(), old, new))
    assert [(each.layer, each.module) for each in manifest.modules] == [
        (layer, module) for layer in range(3) for module in ATTENTION
    ]
    assert warnings_of(manifest) == {"keys_remapped"}


def test_patterns_are_matched_against_the_trained_models_names(read: ManifestReader) -> None:
    tensors = renamed(lora_tensors(), HEAD, f"{HEAD}language_model.")
    config = plain_config(
        target_modules=r"model\.language_model\.layers\.\d+\.self_attn\.[qv]_proj",
        alpha_pattern={"language_model.layers.[0-9].self_attn.q_proj": 32},
    )
    assert scales_of(read(config, tensors)) == {Q: 4.0, V: 2.0}


@pytest.mark.parametrize("dtype", ["F32", "F16", "BF16"])
def test_stored_types(read: ManifestReader, dtype: str) -> None:
    manifest = read(tensors=lora_tensors(dtype=dtype))
    assert {module.a.dtype for module in manifest.modules} == {dtype}


def test_stored_types_may_be_mixed(read: ManifestReader) -> None:
    tensors = lora_tensors([Q], dtype="F16") | lora_tensors([V], dtype="BF16")
    assert len(read(tensors=tensors).modules) == 6


@pytest.mark.parametrize("rank", [1, 3, 14, 512, 1024])
def test_ranks_up_to_the_limit(read: ManifestReader, rank: int) -> None:
    assert read(plain_config(r=rank), lora_tensors(rank=rank)).max_rank == rank


def test_a_single_module_of_a_single_layer(read: ManifestReader) -> None:
    config = plain_config(target_modules=["down_proj"], layers_to_transform=[2])
    (module,) = read(config, lora_tensors(["mlp.down_proj"], layers=[2])).modules
    assert (module.layer, module.a.shape, module.b.shape) == (2, (8, 96), (64, 8))


@pytest.mark.parametrize(
    "header",
    [
        pytest.param(lambda text: text + b" " * 7, id="padded"),
        pytest.param(lambda text: text.replace(b'"pt"', b'"pt", "x": "{\\"y\\": [1]}"'), id="odd"),
        pytest.param(lambda text: text.replace(b'{"format": "pt"}', b"{}"), id="empty metadata"),
        pytest.param(lambda text: text.replace(b": ", b" :\n\t"), id="white space"),
    ],
)
def test_headers_that_differ_in_form_only(
    read: ManifestReader, header: Callable[[bytes], bytes]
) -> None:
    tensors = lora_tensors()
    text = header(json.dumps(header_of(tensors)).encode())
    assert len(read(tensors=safetensors_bytes(tensors, text)).modules) == 6
