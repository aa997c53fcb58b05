"""PEFT adapter folders for the tiny base, made of random numbers."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from safetensors.numpy import save

from lora.base_spec import BaseSpec

QUERY_AND_VALUE = ("self_attn.q_proj", "self_attn.v_proj")


def adapter_config(**fields: Any) -> bytes:
    """An adapter_config.json as PEFT writes it; `fields` replace or add."""
    config = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": "tenfold-test/Tiny-Llama",
        "r": 4,
        "lora_alpha": 8,
        "target_modules": ["q_proj", "v_proj"],
        "bias": "none",
    }
    return json.dumps(config | fields).encode()


def adapter_tensors(
    base: BaseSpec, *, rank: int = 4, seed: int = 0, modules: Sequence[str] = QUERY_AND_VALUE
) -> dict[str, npt.NDArray[np.float32]]:
    """lora_A and lora_B of every layer, by PEFT's names."""
    random = np.random.default_rng(seed)
    tensors = {}
    for layer in range(base.num_layers):
        for module in modules:
            num_in, num_out = base.linear_modules()[module]
            prefix = f"base_model.model.model.layers.{layer}.{module}"
            tensors[f"{prefix}.lora_A.weight"] = _normal(random, (rank, num_in))
            tensors[f"{prefix}.lora_B.weight"] = _normal(random, (num_out, rank))
    return tensors


def adapter_files(base: BaseSpec, *, rank: int = 4, seed: int = 0) -> dict[str, bytes]:
    """The two files of a valid adapter, by name. Another seed gives another digest."""
    return {
        "adapter_config.json": adapter_config(r=rank),
        "adapter_model.safetensors": save(adapter_tensors(base, rank=rank, seed=seed)),
    }


def write_adapter(folder: Path, files: dict[str, bytes]) -> Path:
    folder.mkdir(parents=True)
    for name, content in files.items():
        (folder / name).write_bytes(content)
    return folder


def _normal(random: np.random.Generator, shape: tuple[int, int]) -> npt.NDArray[np.float32]:
    return random.standard_normal(shape, dtype=np.float32) * np.float32(0.02)
