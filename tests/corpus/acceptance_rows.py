"""The specification's list of what must be accepted: how PEFT trains it, and what is served.

Knows nothing of engines. Invariant: what is done to a file after PEFT has saved it changes no
number of what the adapter computes, so that PEFT's own adapter stays the oracle.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import peft
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from lora.store import CONFIG_FILE, WEIGHTS_FILE
from tests.builders.adapters import HEAD

Options = Mapping[str, Any]
Change = Callable[[Path], None]
PLAIN: Options = {"r": 8, "lora_alpha": 16, "target_modules": ["q_proj", "v_proj"]}
Q0 = f"{HEAD}layers.0.self_attn.q_proj"


def as_saved(folder: Path) -> None:
    """Not changed."""


@dataclass(frozen=True, slots=True)
class Accepted:
    """`trained`: fields of PEFT's configuration, and `make_adapter`'s other options."""

    name: str
    trained: Options = field(default_factory=lambda: PLAIN)
    change: Change = as_saved
    warning: str | None = None


def configured(*gone: str, **changes: Any) -> Change:
    """Fields of the configuration are these, or not there."""

    def change(folder: Path) -> None:
        path = folder / CONFIG_FILE
        config = {**json.loads(path.read_text()), **changes}
        path.write_text(json.dumps({key: config[key] for key in config if key not in gone}))

    return change


def kept(*names: str) -> Change:
    """No other fields of the configuration than these."""

    def change(folder: Path) -> None:
        path = folder / CONFIG_FILE
        config = json.loads(path.read_text())
        path.write_text(json.dumps({name: config.get(name) for name in names}))

    return change


def renamed(old: str, new: str) -> Change:
    """`old` in the names of tensors is `new`."""

    def change(folder: Path) -> None:
        tensors = load_file(folder / WEIGHTS_FILE)
        assert any(old in name for name in tensors)
        save_file(
            {name.replace(old, new, 1): tensor for name, tensor in tensors.items()},
            folder / WEIGHTS_FILE,
            metadata={"format": "pt"},
        )

    return change


def half_in(dtype: torch.dtype) -> Change:
    """Every other tensor in another type, of numbers that both types have."""

    def change(folder: Path) -> None:
        tensors = load_file(folder / WEIGHTS_FILE)
        for name in list(tensors)[::2]:
            tensors[name] = tensors[name].to(dtype)
        save_file(tensors, folder / WEIGHTS_FILE)

    return change


def padded(folder: Path) -> None:
    """Spaces after the header's JSON."""
    header, body = _parts(folder)
    _write(folder, header.rstrip() + b" " * 1001, body)


def unsorted(folder: Path) -> None:
    """The header names the tensors in another order than that of their bytes."""
    header, body = _parts(folder)
    entries = list(json.loads(header).items())
    random.Random(3).shuffle(entries)
    _write(folder, json.dumps(dict(entries)).encode(), body)


def without_metadata(folder: Path) -> None:
    save_file(load_file(folder / WEIGHTS_FILE), folder / WEIGHTS_FILE)


def _parts(folder: Path) -> tuple[bytes, bytes]:
    data = (folder / WEIGHTS_FILE).read_bytes()
    end = 8 + int.from_bytes(data[:8], "little")
    return data[8:end], data[end:]


def _write(folder: Path, header: bytes, body: bytes) -> None:
    content = len(header).to_bytes(8, "little") + header + body
    (folder / WEIGHTS_FILE).write_bytes(content)


def converted_pissa(model: Any, folder: Path) -> Path:
    """PiSSA on `model`, trained, and converted by PEFT: of twice the rank, on the base as it was.

    The recipe of PEFT's documentation of `path_initial_model_for_weight_conversion`.
    """
    options = {"r": 4, "lora_alpha": 4, "target_modules": ["q_proj"], "task_type": "CAUSAL_LM"}
    wrapped = peft.get_peft_model(model, peft.LoraConfig(init_lora_weights="pissa", **options))
    config: Any = wrapped.peft_config["default"]
    config.init_lora_weights = True
    wrapped.save_pretrained(str(folder / "initial"))
    config.init_lora_weights = "pissa"
    with torch.no_grad():
        for name, parameter in wrapped.named_parameters():
            if ".lora_" in name:
                parameter.add_(_noise(parameter))
    target = folder / "converted"
    initial = str(folder / "initial")
    wrapped.save_pretrained(str(target), path_initial_model_for_weight_conversion=initial)
    return target


def _noise(like: Tensor) -> Tensor:
    return torch.empty_like(like).normal_(0.0, 0.05)


OLDEST = (
    *("base_model_name_or_path", "bias", "enable_lora", "fan_in_fan_out", "inference_mode"),
    *("lora_alpha", "lora_dropout", "merge_weights", "modules_to_save", "peft_type", "r"),
    *("target_modules", "task_type"),
)
UNSLOTH = {
    "base_model_class": "LlamaForCausalLM",
    "parent_library": "transformers.models.llama.modeling_llama",
    "unsloth_fixed": True,
}
# What trainers wrap names in: (what PEFT writes, what they write).
WRAPPERS = (
    (HEAD, "model."),
    (HEAD, "base_model.model."),
    (HEAD, f"base_model.model.{HEAD}"),
    (HEAD, f"module.{HEAD}"),
    (HEAD, f"_orig_mod.{HEAD}"),
    (HEAD, "base_model.model._orig_mod.model."),
    (HEAD, f"{HEAD}language_model."),
    ("self_attn.", "_fsdp_wrapped_module.self_attn."),
    ("self_attn.", "_checkpoint_wrapped_module.self_attn."),
    (".weight", ".default.weight"),
)
EVERY_LINEAR = "all-linear"

ACCEPTED = (
    Accepted("plain q,v"),
    Accepted("all-linear", {"r": 4, "target_modules": EVERY_LINEAR}),
    Accepted("regex targets", {"r": 3, "target_modules": r".*\.layers\.[01]\..*(q_proj|o_proj)"}),
    Accepted(
        "full-path target list",
        {
            "r": 4,
            "target_modules": ["model.layers.0.self_attn.q_proj", "model.layers.2.mlp.up_proj"],
        },
    ),
    Accepted(
        "rank_pattern + alpha_pattern",
        {**PLAIN, "rank_pattern": {"v_proj": 2}, "alpha_pattern": {"q_proj": 32}},
    ),
    Accepted("use_rslora", {**PLAIN, "use_rslora": True}),
    Accepted(
        "exclude_modules",
        {"r": 4, "target_modules": EVERY_LINEAR, "exclude_modules": ["k_proj", "mlp.up_proj"]},
    ),
    Accepted(
        "layers_to_transform (2 tensors only)",
        {"r": 4, "target_modules": ["q_proj"], "layers_to_transform": [1]},
    ),
    *(
        Accepted(f"init {name}", {**PLAIN, "init_lora_weights": name})
        for name in ("gaussian", "orthogonal", "mica", True, False)
    ),
    Accepted("init eva", change=configured(init_lora_weights="eva", eva_config={"rho": 2.0})),
    Accepted("converted PiSSA", {"converted": "pissa"}),
    Accepted("bias lora_only on a bias-less base", {**PLAIN, "bias": "lora_only"}),
    Accepted("bias all on a bias-less base", {**PLAIN, "bias": "all"}),
    Accepted("empty modules_to_save", {**PLAIN, "modules_to_save": []}),
    Accepted("velora", change=configured(velora_config={"num_groups": 4, "scale": 1.0})),
    Accepted("lora_alpha missing", {**PLAIN, "lora_alpha": 8}, configured("lora_alpha")),
    Accepted("lora_alpha a float", change=configured(lora_alpha=16.0)),
    Accepted("alpha 0", {**PLAIN, "lora_alpha": 0}, warning="scaling_unusual"),
    Accepted("alpha negative", {**PLAIN, "lora_alpha": -16}, warning="scaling_unusual"),
    Accepted("BF16", {**PLAIN, "file_dtype": torch.bfloat16}),
    Accepted("F16", {**PLAIN, "file_dtype": torch.float16}),
    Accepted("mixed per tensor", {**PLAIN, "file_dtype": torch.bfloat16}, half_in(torch.float32)),
    Accepted("an old configuration of 13 fields", change=kept(*OLDEST)),
    Accepted(
        "the name of a 4-bit base",
        change=configured(base_model_name_or_path="unsloth/T-bnb-4bit"),
        warning="trained_on_quantized_base",
    ),
    Accepted("Unsloth's auto_mapping", change=configured(auto_mapping=UNSLOTH)),
    *(
        Accepted(f"{new}, in the place of {old}", change=renamed(old, new), warning="keys_remapped")
        for old, new in WRAPPERS
    ),
    Accepted("header padded", change=padded),
    Accepted("no metadata", change=without_metadata),
    Accepted("unsorted tensors", change=unsorted),
    Accepted("rank 1", {"r": 1, "lora_alpha": 4, "target_modules": ["gate_proj"]}),
    Accepted(
        "the largest rank", {"r": 1024, "lora_alpha": 64, "target_modules": ["q_proj", "down_proj"]}
    ),
    Accepted(
        "a rank for each module",
        {
            "r": 4,
            "target_modules": ["q_proj", "k_proj", "up_proj"],
            "rank_pattern": {"k_proj": 3, r"layers\.1\.mlp\.up_proj": 10},
        },
    ),
    Accepted(
        "a single layer", {"r": 14, "target_modules": ["down_proj"], "layers_to_transform": [2]}
    ),
    Accepted(
        "every linear module at rank 256",
        {"r": 256, "lora_alpha": 32, "target_modules": EVERY_LINEAR},
    ),
)
