"""The tiny base with weights: what `python -m engine` can load. Torch lives here only."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from transformers import LlamaConfig, LlamaForCausalLM

from tests.builders.tiny_base import CONFIG, write_tiny_base

NOT_OF_THE_MODEL = {"architectures", "model_type", "_name_or_path"}


def write_real_base(folder: Path, seed: int = 1) -> Path:
    """Random weights that give long and various answers; returns the new `folder`."""
    write_tiny_base(folder)
    as_written = json.loads((folder / "config.json").read_text())
    fields: dict[str, Any] = {k: v for k, v in CONFIG.items() if k not in NOT_OF_THE_MODEL}
    torch.manual_seed(seed)
    model = LlamaForCausalLM(LlamaConfig(**fields, initializer_range=0.2, bos_token_id=None))
    model.save_pretrained(folder)
    (folder / "config.json").write_text(json.dumps(as_written))
    return folder
