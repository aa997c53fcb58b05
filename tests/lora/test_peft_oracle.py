"""Files that PEFT itself saved are read with exactly PEFT's modules, ranks and scales."""

from __future__ import annotations

import copy
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import LoraConfig, get_peft_model
from peft.tuners.lora import LoraLayer
from safetensors.torch import load_file
from transformers import LlamaConfig, LlamaForCausalLM

from lora.base_spec import BaseSpec
from lora.manifest import AdapterManifest, ManifestError, read_manifest
from lora.store import CONFIG_FILE, WEIGHTS_FILE
from tests.builders.refusals import refused, warnings_of

pytestmark = pytest.mark.filterwarnings("ignore")

ALL = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]

ACCEPTED: dict[str, dict[str, Any]] = {
    "plain": {"target_modules": ["q_proj", "v_proj"]},
    "default_targets": {"target_modules": None},
    "all_linear": {"target_modules": "all-linear", "r": 4},
    "regex": {"target_modules": r".*\.layers\.[01]\..*(q_proj|o_proj)"},
    "full_paths": {"target_modules": ["model.layers.1.self_attn.q_proj", "layers.2.mlp.up_proj"]},
    "patterns": {
        "target_modules": ALL,
        "rank_pattern": {"v_proj": 2, r"layers\.1\.mlp\..*": 6, "mlp.up_proj": 3},
        "alpha_pattern": {"q_proj": 32, "^model.layers.0.self_attn.o_proj": 5, "down_proj": 0.5},
    },
    "rslora": {"target_modules": ["q_proj"], "use_rslora": True, "lora_alpha": 64},
    "rslora_patterns": {
        "target_modules": ["q_proj", "up_proj"],
        "use_rslora": True,
        "rank_pattern": {"up_proj": 3},
        "alpha_pattern": {"q_proj": 7},
    },
    "exclude_list": {"target_modules": "all-linear", "exclude_modules": ["k_proj", "mlp.up_proj"]},
    "exclude_regex": {"target_modules": ALL, "exclude_modules": r".*\.(0|1)\.mlp\..*"},
    "one_layer": {"target_modules": ["q_proj", "v_proj"], "layers_to_transform": [1]},
    "layers_pattern": {
        "target_modules": ["q_proj"],
        "layers_to_transform": [0, 2],
        "layers_pattern": "layers",
    },
    "layer_number": {"target_modules": ["down_proj"], "layers_to_transform": 2},
    "gaussian": {"target_modules": ["q_proj"], "init_lora_weights": "gaussian"},
    "orthogonal": {"target_modules": ["q_proj"], "init_lora_weights": "orthogonal"},
    "mica": {"target_modules": ["q_proj"], "init_lora_weights": "mica"},
    "random_b": {"target_modules": ["q_proj"], "init_lora_weights": False},
    "bias_lora_only": {"target_modules": ["q_proj"], "bias": "lora_only"},
    "bias_all": {"target_modules": ["q_proj"], "bias": "all"},
    "no_modules_to_save": {"target_modules": ["q_proj"], "modules_to_save": []},
    "alpha_zero": {"target_modules": ["q_proj"], "lora_alpha": 0},
    "rank_1": {"target_modules": ALL, "r": 1},
    "rank_512": {"target_modules": ["q_proj", "down_proj"], "r": 512},
}

FORMS: dict[str, dict[str, Any]] = {
    "dora": {"target_modules": ["q_proj", "lm_head"], "use_dora": True},
    "lora_bias": {"target_modules": ["q_proj"], "lora_bias": True},
    "saved_head": {"target_modules": ["q_proj"], "modules_to_save": ["lm_head", "embed_tokens"]},
    "saved_norms": {"target_modules": ["q_proj"], "modules_to_save": ["norm"]},
    "embedding": {"target_modules": ["embed_tokens", "q_proj"]},
    "head": {"target_modules": ["lm_head", "q_proj"], "layers_to_transform": [1]},
    "head_by_regex": {"target_modules": r"lm_head|.*\.1\..*q_proj"},
    "head_saved_and_targeted": {
        "target_modules": ["lm_head", "q_proj"],
        "modules_to_save": ["lm_head"],
    },
    "tokens": {"target_modules": ["q_proj"], "trainable_token_indices": [5, 9]},
}

REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "pissa": ({"target_modules": ["q_proj"], "init_lora_weights": "pissa"}, "init_mutates_base"),
    "olora": ({"target_modules": ["q_proj"], "init_lora_weights": "olora"}, "init_mutates_base"),
    "saved_linear": (
        {"target_modules": ["q_proj"], "modules_to_save": ["lm_head", "down_proj"]},
        "modules_to_save_unsupported",
    ),
    "replication": (
        {"target_modules": ["q_proj"], "layer_replication": [[0, 2], [1, 3]]},
        "layer_replication_unsupported",
    ),
}


@dataclass(frozen=True, slots=True)
class TinyLlama:
    """A random Llama in a folder; copies have other weights, which these tests do not look at."""

    folder: Path
    config: LlamaConfig
    spec: BaseSpec

    def copy(self) -> LlamaForCausalLM:
        model = LlamaForCausalLM(copy.deepcopy(self.config))
        model.name_or_path = str(self.folder)
        return model

    def save_adapter(self, folder: Path, **fields: Any) -> Any:
        """Put LoRA on a fresh copy, save it as PEFT does, and return the PEFT model."""
        config = LoraConfig(**{"r": 8, "lora_alpha": 16, "task_type": "CAUSAL_LM", **fields})
        model = get_peft_model(self.copy(), config)
        model.save_pretrained(str(folder))
        return model

    def read(self, folder: Path) -> AdapterManifest:
        config = (folder / CONFIG_FILE).read_bytes()
        return read_manifest(config, folder / WEIGHTS_FILE, self.spec)


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> TinyLlama:
    folder = tmp_path_factory.mktemp("tiny-llama")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.manual_seed(1)
        config = LlamaConfig(
            hidden_size=64,
            intermediate_size=96,
            num_hidden_layers=3,
            num_attention_heads=4,
            num_key_value_heads=2,
            vocab_size=128,
            max_position_embeddings=256,
            tie_word_embeddings=True,
        )
        LlamaForCausalLM(config).save_pretrained(folder)
    return TinyLlama(folder, config, BaseSpec.from_folder(folder, model_id=str(folder)))


def scalings_of(model: Any) -> dict[tuple[int, str], tuple[int, float]]:
    """(layer, module) -> (rank, scale), as PEFT holds them."""
    found = {}
    for name, module in model.named_modules():
        if isinstance(module, LoraLayer):
            layer, _, suffix = name.partition("layers.")[2].partition(".")
            key = (int(layer), suffix) if layer else (-1, name.rpartition(".")[2])
            found[key] = (module.r["default"], module.scaling["default"])
    return found


@pytest.mark.parametrize("variant", [*ACCEPTED, *FORMS])
def test_ranks_and_scales_are_pefts(tiny: TinyLlama, tmp_path: Path, variant: str) -> None:
    model = tiny.save_adapter(tmp_path, **(ACCEPTED | FORMS)[variant])
    manifest = tiny.read(tmp_path)
    found = {(each.layer, each.module): (each.rank, each.scale) for each in manifest.modules}
    assert found == scalings_of(model)
    assert found


def test_the_spans_hold_the_tensors_that_were_saved(tiny: TinyLlama, tmp_path: Path) -> None:
    tiny.save_adapter(tmp_path, target_modules=ALL, init_lora_weights=False)
    saved = load_file(tmp_path / WEIGHTS_FILE)
    content = (tmp_path / WEIGHTS_FILE).read_bytes()
    for module in tiny.read(tmp_path).modules:
        for span in (module.a, module.b):
            tensor = saved.pop(span.name)
            assert content[span.begin : span.end] == tensor.numpy().tobytes()
            assert tuple(tensor.shape) == span.shape
    assert saved == {}


@pytest.mark.parametrize("variant", REFUSED)
def test_what_is_not_served_is_refused_by_name(
    tiny: TinyLlama, tmp_path: Path, variant: str
) -> None:
    fields, code = REFUSED[variant]
    tiny.save_adapter(tmp_path, **fields)
    with refused(code):
        tiny.read(tmp_path)


@pytest.mark.parametrize("variant", ["dora", "lora_bias", "saved_norms", "embedding", "tokens"])
def test_tensors_that_the_configuration_does_not_explain_are_refused(
    tiny: TinyLlama, tmp_path: Path, variant: str
) -> None:
    tiny.save_adapter(tmp_path / "variant", **FORMS[variant])
    tiny.save_adapter(tmp_path / "plain", target_modules=["q_proj"])
    config = (tmp_path / "plain" / CONFIG_FILE).read_bytes()
    with pytest.raises(ManifestError, match=r"unsupported|unexpected"):
        read_manifest(config, tmp_path / "variant" / WEIGHTS_FILE, tiny.spec)


def test_a_pissa_adapter_that_was_converted_is_accepted(tiny: TinyLlama, tmp_path: Path) -> None:
    converted = tmp_path / "converted"
    model = get_peft_model(
        tiny.copy(),
        LoraConfig(r=4, lora_alpha=4, target_modules=["q_proj"], init_lora_weights="pissa"),
    )
    initial = tmp_path / "initial"
    config: Any = model.peft_config["default"]
    config.init_lora_weights = True
    model.save_pretrained(str(initial))
    config.init_lora_weights = "pissa"
    model.save_pretrained(str(converted), path_initial_model_for_weight_conversion=str(initial))
    manifest = tiny.read(converted)
    assert {module.rank for module in manifest.modules} == {8}


def test_the_bases_own_name_is_verified(tiny: TinyLlama, tmp_path: Path) -> None:
    tiny.save_adapter(tmp_path, target_modules=["q_proj"])
    assert warnings_of(tiny.read(tmp_path)) == set()
