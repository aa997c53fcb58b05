"""The smallest adapter of a base: rank 1 on the first layer's query, and changing nothing.

Knows nothing of the API. Invariant: B is zero, so the adapter's answers are the base's.
"""

from __future__ import annotations

import json

import numpy as np
from safetensors.numpy import save

from lora.base_spec import BaseSpec
from lora.store import CONFIG_FILE, WEIGHTS_FILE

MODULE = "self_attn.q_proj"
TENSOR = f"base_model.model.model.layers.0.{MODULE}"


def smallest_adapter(base: BaseSpec) -> dict[str, bytes]:
    """Its two files, by name, as PEFT saves them."""
    num_in, num_out = base.linear_modules()[MODULE]
    config = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": base.model_id,
        "r": 1,
        "lora_alpha": 1,
        "target_modules": ["q_proj"],
        "layers_to_transform": [0],
        "bias": "none",
    }
    tensors = {
        f"{TENSOR}.lora_A.weight": np.full((1, num_in), 0.01, np.float32),
        f"{TENSOR}.lora_B.weight": np.zeros((num_out, 1), np.float32),
    }
    return {CONFIG_FILE: json.dumps(config).encode(), WEIGHTS_FILE: save(tensors)}
