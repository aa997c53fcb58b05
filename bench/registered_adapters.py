"""Many small adapters in a store, as uploads would have left them: made once, then reused.

Random A and B of rank 4 on q and v, small enough that answers stay answers. Knows nothing of
engines. Invariant: adapter i of a base is the same in every run, whatever else is registered.
"""

from __future__ import annotations

import json
import tempfile
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import Tensor

from engine.messages import AdapterRef
from lora.base_spec import BaseSpec
from lora.digest import adapter_digest, hash_file
from lora.store import CONFIG_FILE, WEIGHTS_FILE, LocalAdapterStore, locator_of

RANK = 4
SPREAD = 0.02
INDEX = "adapters.json"


class RegisteredAdapters:
    """Adapters 0, 1, 2, ... of one base, each of a tenant of its own, in a store in `folder`."""

    def __init__(self, folder: Path, base: BaseSpec) -> None:
        self._base = base
        self._index = folder / INDEX
        self.store = LocalAdapterStore(folder / "store")
        self._digests: list[str] = []
        if self._index.exists():
            self._digests = json.loads(self._index.read_text())

    def refs(self, number: int) -> list[AdapterRef]:
        """The first `number`; those that are not in the store yet are made."""
        if len(self._digests) < number:
            self._register(range(len(self._digests), number))
        return [
            AdapterRef(tenant_id=_tenant(i), digest=digest, locator=locator_of(_tenant(i), digest))
            for i, digest in enumerate(self._digests[:number])
        ]

    def _register(self, numbers: range) -> None:
        with tempfile.TemporaryDirectory() as scratch:
            files = {name: Path(scratch) / name for name in (CONFIG_FILE, WEIGHTS_FILE)}
            files[CONFIG_FILE].write_text(json.dumps(_config(self._base.model_id)))
            for number in numbers:
                save_file(_tensors(self._base, number), files[WEIGHTS_FILE])
                digest = adapter_digest(hash_file(path) for path in files.values())
                self.store.put(_tenant(number), digest, files)
                self._digests.append(digest)
        self._index.write_text(json.dumps(self._digests))


def _tenant(number: int) -> str:
    return f"ten_{number}"


def _config(model_id: str) -> dict[str, object]:
    return {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": model_id,
        "r": RANK,
        "lora_alpha": RANK,
        "target_modules": ["q_proj", "v_proj"],
    }


def _tensors(base: BaseSpec, number: int) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(number)
    hidden = base.hidden_size
    outputs = {
        "q_proj": base.num_heads * base.head_dim,
        "v_proj": base.num_kv_heads * base.head_dim,
    }
    tensors = {}
    for layer in range(base.num_layers):
        for module, width in outputs.items():
            name = f"base_model.model.model.layers.{layer}.self_attn.{module}"
            for side, shape in (("lora_A", (RANK, hidden)), ("lora_B", (width, RANK))):
                values = SPREAD * torch.randn(shape, generator=generator)
                tensors[f"{name}.{side}.weight"] = values.to(torch.bfloat16)
    return tensors
