"""Files that PEFT itself saved are read with exactly PEFT's modules, ranks and scales."""

from __future__ import annotations

import copy
import json
import warnings
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import LoraConfig, PeftModel, get_peft_model
from peft.tuners.lora import LoraLayer
from safetensors.torch import load_file, save_file
from transformers import LlamaConfig, LlamaForCausalLM

from lora.base_spec import MODULES, BaseSpec
from lora.config_fields import NO_BEARING
from lora.manifest import AdapterManifest, ManifestError, read_manifest
from lora.store import CONFIG_FILE, WEIGHTS_FILE
from lora.values import check_values
from tests.builders.mutants import ODD
from tests.builders.refusals import refused, warnings_of

pytestmark = pytest.mark.filterwarnings("ignore")

ALL = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]

PATHS = [f"model.layers.{layer}.{module}" for layer in range(3) for module in MODULES]

ACCEPTED: dict[str, dict[str, Any]] = {
    "plain": {"target_modules": ["q_proj", "v_proj"]},
    "default_targets": {"target_modules": None},
    "all_linear": {"target_modules": "all-linear", "r": 4},
    "regex": {"target_modules": r".*\.layers\.[01]\..*(q_proj|o_proj)"},
    "full_paths": {"target_modules": ["model.layers.1.self_attn.q_proj", "layers.2.mlp.up_proj"]},
    "many_full_paths": {"target_modules": PATHS},
    "full_paths_beside_layers": {"target_modules": PATHS[:19], "layers_to_transform": [0]},
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

# With `ensure_weight_tying`, and how many pairs PEFT then keeps in one storage.
TIED: dict[str, tuple[dict[str, Any], int]] = {
    "embedding": ({"target_modules": ["q_proj", "embed_tokens"]}, 2),
    "head": ({"target_modules": ["lm_head"], "layers_to_transform": [0]}, 2),
    "regex": ({"target_modules": r".*q_proj|lm_head"}, 2),
    "regex_of_a_path": ({"target_modules": r".*q_proj|model\.embed_tokens"}, 0),
    "saved_head": ({"target_modules": ["q_proj"], "modules_to_save": ["lm_head"]}, 1),
    "saved_embedding": ({"target_modules": ["q_proj"], "modules_to_save": ["embed_tokens"]}, 1),
    "saved_and_targeted": (
        {"target_modules": ["q_proj", "embed_tokens"], "modules_to_save": ["lm_head"]},
        1,
    ),
    "saved_by_an_end": ({"target_modules": ["q_proj"], "modules_to_save": ["tokens"]}, 0),
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


def shared_pairs(model: Any) -> int:
    """How many of the head's tensors are the embedding's too."""
    parts: dict[bool, set[int]] = {True: set(), False: set()}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        if "default" in name and ("lm_head" in name or "embed_tokens" in name):
            parts["lm_head" in name].add(parameter.data_ptr())
    return len(parts[True] & parts[False])


@pytest.mark.parametrize("variant", TIED)
def test_the_head_is_tied_where_peft_ties_it(tiny: TinyLlama, tmp_path: Path, variant: str) -> None:
    fields, num_pairs = TIED[variant]
    model = tiny.save_adapter(tmp_path, ensure_weight_tying=True, **fields)
    # What PEFT saves is what it made of the fields; the file may have them as they were.
    config = tmp_path / CONFIG_FILE
    config.write_text(json.dumps(json.loads(config.read_text()) | fields))
    manifest = tiny.read(tmp_path)
    found = {(each.layer, each.module): (each.rank, each.scale) for each in manifest.modules}
    assert found == scalings_of(model)
    assert len(manifest.tied) == shared_pairs(model) == num_pairs


def test_of_a_tied_pair_that_differs_peft_takes_the_heads_numbers(
    tiny: TinyLlama, tmp_path: Path
) -> None:
    """So it is refused: each place would be served with its own."""
    fields = {"target_modules": ["embed_tokens"], "ensure_weight_tying": True}
    tiny.save_adapter(tmp_path, **fields)
    path = tmp_path / WEIGHTS_FILE
    assert not [
        each for each in check_values(path, tiny.read(tmp_path)) if each.severity == "error"
    ]
    tensors = load_file(path)
    head = "base_model.model.lm_head.lora_A.weight"
    tensors[head] = tensors[head] + 1
    save_file(tensors, path)
    loaded: Any = PeftModel.from_pretrained(tiny.copy(), str(tmp_path))
    embedding = loaded.get_input_embeddings().lora_embedding_B["default"]
    assert torch.equal(embedding.t(), tensors[head])
    codes = {each.code for each in check_values(path, tiny.read(tmp_path))}
    assert "tensor_duplicate" in codes


def test_a_field_of_any_value_is_read_as_peft_reads_it_or_refused(
    tiny: TinyLlama, tmp_path: Path
) -> None:
    """Each field of PEFT's, with each odd value: what is accepted PEFT loads, with these modules
    at these scales. Those without bearing PEFT may fail to read."""
    tiny.save_adapter(tmp_path, target_modules=["q_proj", "v_proj"])
    plain = json.loads((tmp_path / CONFIG_FILE).read_text())
    accepted = 0
    for field, value in product(sorted(plain.keys() - NO_BEARING), ODD):
        if value is plain[field]:
            continue
        (tmp_path / CONFIG_FILE).write_text(json.dumps({**plain, field: value}))
        try:
            manifest = tiny.read(tmp_path)
        except ManifestError:
            continue
        accepted += 1
        model = PeftModel.from_pretrained(tiny.copy(), str(tmp_path))
        found = {(each.layer, each.module): (each.rank, each.scale) for each in manifest.modules}
        assert found == scalings_of(model), (field, value)
    assert accepted > 30, accepted


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
