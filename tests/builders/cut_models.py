"""The first layers of a base and of adapters on it: real weights, small enough to interpret."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

from safetensors.torch import load_file, save_file

LAYER = re.compile(r"\.layers\.(\d+)\.")


def cut_base(folder: Path, target: Path, num_layers: int) -> Path:
    """A copy of the base in `folder` with its first `num_layers` layers; the rest as it is."""
    target.mkdir(parents=True)
    for path in folder.iterdir():
        if path.suffix == ".json" and "index" not in path.name:
            shutil.copy(path, target)
    config = json.loads((folder / "config.json").read_text())
    (target / "config.json").write_text(json.dumps({**config, "num_hidden_layers": num_layers}))
    for path in folder.glob("*.safetensors"):
        _cut_file(path, target / path.name, num_layers)
    return target


def cut_adapter(folder: Path, target: Path, num_layers: int) -> Path:
    """A copy of the adapter in `folder` without what it has at later layers."""
    target.mkdir(parents=True)
    shutil.copy(folder / "adapter_config.json", target)
    name = "adapter_model.safetensors"
    _cut_file(folder / name, target / name, num_layers)
    return target


def _cut_file(source: Path, target: Path, num_layers: int) -> None:
    kept = {}
    for name, tensor in load_file(source).items():
        layer = LAYER.search(name)
        if layer is None or int(layer[1]) < num_layers:
            kept[name] = tensor
    save_file(kept, target, metadata={"format": "pt"})
