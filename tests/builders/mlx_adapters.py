"""A PEFT adapter as MLX's trainer would have saved it: other names, A and B transposed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from safetensors.torch import load_file, save_file

from lora.store import CONFIG_FILE, WEIGHTS_FILE

NAMES = {
    ".lora_A.weight": ".lora_a",
    ".lora_B.weight": ".lora_b",
    ".lora_magnitude_vector": ".m",
}


def to_mlx(folder: Path, target: Path, *, num_layers: int, **changes: Any) -> Path:
    """`changes` are put into the configuration. The adapter has one rank and one scale."""
    config = json.loads((folder / CONFIG_FILE).read_text())
    tensors = {}
    for name, tensor in load_file(folder / WEIGHTS_FILE).items():
        ending = next(each for each in NAMES if name.endswith(each))
        path = name.removeprefix("base_model.model.").removesuffix(ending)
        turned = tensor.t().contiguous() if tensor.ndim == 2 else tensor
        tensors[path + NAMES[ending]] = turned
    target.mkdir(parents=True)
    save_file(tensors, target / WEIGHTS_FILE)
    mlx = {
        "model": config["base_model_name_or_path"],
        "fine_tune_type": "dora" if config["use_dora"] else "lora",
        "num_layers": num_layers,
        "lora_parameters": {
            "rank": config["r"],
            "scale": config["lora_alpha"] / config["r"],
            "dropout": 0.0,
        },
        "iters": 1000,
        "learning_rate": 1e-5,
        "train": True,
        **changes,
    }
    (target / CONFIG_FILE).write_text(json.dumps(mlx))
    return target
