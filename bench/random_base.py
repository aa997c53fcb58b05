"""A base model and adapters of given shapes with seeded random weights, as folders on disk.

For machines that have no network and no room for a real base. Invariant: the same seed and shapes
give the same bytes.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import Tensor

from engine.models import llama
from lora.base_spec import BaseSpec
from lora.store import CONFIG_FILE, WEIGHTS_FILE

ROPE_THETA = 100_000.0


def write_base(folder: Path, base: BaseSpec, seed: int) -> Path:
    """A Hugging Face folder of the Llama family, float32, without a tokenizer."""
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(_config(base), indent=2))
    save_file(_tensors(base, seed), str(folder / "model.safetensors"), metadata={"format": "pt"})
    return folder


def write_adapter(
    folder: Path, base: BaseSpec, modules: Sequence[str], rank: int, seed: int
) -> Path:
    """A PEFT folder of plain LoRA on `modules` of every layer, both factors random."""
    folder.mkdir(parents=True)
    generator = torch.Generator().manual_seed(seed)
    tensors = {}
    shapes = base.linear_modules()
    for layer in range(base.num_layers):
        for module in modules:
            num_in, num_out = shapes[module]
            name = f"base_model.model.model.layers.{layer}.{module}"
            a = torch.randn(rank, num_in, generator=generator) / num_in**0.5
            tensors[f"{name}.lora_A.weight"] = a
            tensors[f"{name}.lora_B.weight"] = torch.randn(num_out, rank, generator=generator) * 0.1
    config = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": base.model_id,
        "r": rank,
        "lora_alpha": 2 * rank,
        "lora_dropout": 0.0,
        "bias": "none",
        "fan_in_fan_out": False,
        "inference_mode": True,
        "target_modules": sorted({module.rsplit(".", 1)[-1] for module in modules}),
    }
    (folder / CONFIG_FILE).write_text(json.dumps(config, indent=2))
    save_file(tensors, str(folder / WEIGHTS_FILE), metadata={"format": "pt"})
    return folder


def _config(base: BaseSpec) -> dict[str, object]:
    return {
        "_name_or_path": base.model_id,
        "architectures": [base.architecture],
        "model_type": "llama",
        "hidden_act": "silu",
        "hidden_size": base.hidden_size,
        "intermediate_size": base.intermediate_size,
        "num_hidden_layers": base.num_layers,
        "num_attention_heads": base.num_heads,
        "num_key_value_heads": base.num_kv_heads,
        "head_dim": base.head_dim,
        "vocab_size": base.vocab_size,
        "max_position_embeddings": base.max_model_len,
        "tie_word_embeddings": base.tie_word_embeddings,
        "eos_token_id": list(base.eos_token_ids),
        "rms_norm_eps": 1e-5,
        "rope_theta": ROPE_THETA,
        "rope_parameters": {"rope_type": "default", "rope_theta": ROPE_THETA},
    }


def _tensors(base: BaseSpec, seed: int) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(seed)

    def weight(num_out: int, num_in: int) -> Tensor:
        return torch.randn(num_out, num_in, generator=generator).div_(num_in**0.5)

    def norm() -> Tensor:
        return torch.ones(base.hidden_size)

    tensors = {
        llama.EMBEDDING: weight(base.vocab_size, base.hidden_size),
        llama.NORM: norm(),
    }
    if not base.tie_word_embeddings:
        tensors[llama.LM_HEAD] = weight(base.vocab_size, base.hidden_size)
    for layer in range(base.num_layers):
        tensors[llama.INPUT_NORM.format(layer=layer)] = norm()
        tensors[llama.POST_ATTENTION_NORM.format(layer=layer)] = norm()
        for module, (num_in, num_out) in base.linear_modules().items():
            name = llama.MODULE.format(layer=layer, module=module, kind="weight")
            tensors[name] = weight(num_out, num_in)
    return tensors
