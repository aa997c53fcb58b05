"""Adapters made by hand: a tiny base, its tensors, a configuration, and safetensors files.

Knows nothing of torch or PEFT, so that a test can write what no library would.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from lora.base_spec import BaseSpec
from lora.digest import adapter_digest, hash_file
from lora.manifest import DEFAULT_LIMITS, AdapterManifest, ManifestLimits, read_manifest
from lora.store import CONFIG_FILE, WEIGHTS_FILE

TINY_BASE = BaseSpec(
    model_id="tenfold/tiny",
    known_names=frozenset({"tenfold/tiny"}),
    architecture="LlamaForCausalLM",
    hidden_size=64,
    intermediate_size=96,
    num_layers=3,
    num_heads=4,
    num_kv_heads=2,
    head_dim=16,
    vocab_size=128,
    max_model_len=256,
    tie_word_embeddings=True,
    attention_bias=False,
    mlp_bias=False,
    eos_token_ids=(2,),
    fingerprint="sha256:" + "0" * 64,
)
BIASED_BASE = replace(TINY_BASE, attention_bias=True)
HEAD = "base_model.model.model."
ATTENTION = ("self_attn.q_proj", "self_attn.v_proj")
ITEM_BYTES = {"F32": 4, "F16": 2, "BF16": 2, "F64": 8, "I8": 1}


@dataclass(frozen=True, slots=True)
class StoredTensor:
    """A tensor as a file holds it."""

    dtype: str
    shape: tuple[int, ...]
    data: bytes


Tensors = dict[str, StoredTensor]


def plain_config(**changes: object) -> dict[str, object]:
    """The fields that PEFT writes for a plain LoRA on q and v; `changes` replace or add."""
    return {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": "tenfold/tiny",
        "r": 8,
        "lora_alpha": 16,
        "lora_dropout": 0.0,
        "bias": "none",
        "fan_in_fan_out": False,
        "inference_mode": True,
        "target_modules": ["q_proj", "v_proj"],
        **changes,
    }


def without(config: Mapping[str, object], *names: str) -> dict[str, object]:
    return {name: value for name, value in config.items() if name not in names}


def stored(values: np.ndarray[Any, Any], dtype: str = "F32") -> StoredTensor:
    """`values` (float32) in one of the three served dtypes; BF16 by truncation."""
    if dtype == "BF16":
        data = (values.astype("<f4").view("<u4") >> 16).astype("<u2").tobytes()
    else:
        data = values.astype({"F32": "<f4", "F16": "<f2"}[dtype]).tobytes()
    return StoredTensor(dtype, values.shape, data)


def zeros(shape: tuple[int, ...], dtype: str = "F32") -> StoredTensor:
    return StoredTensor(dtype, shape, bytes(ITEM_BYTES[dtype] * int(np.prod(shape))))


def lora_tensors(
    modules: Iterable[str] = ATTENTION,
    *,
    base: BaseSpec = TINY_BASE,
    layers: Iterable[int] | None = None,
    rank: int | Mapping[str, int] = 8,
    dtype: str = "F32",
    head: str = HEAD,
    seed: int = 0,
) -> Tensors:
    """Random A and B for `modules` in `layers` (default: all), named as PEFT names them; those of
    `lm_head` once.

    `rank` may be a mapping from module to rank.
    """
    random = np.random.default_rng(seed)
    features = {**base.linear_modules(), "lm_head": (base.hidden_size, base.vocab_size)}
    modules = list(modules)
    paths = [
        (f"{head}layers.{layer}.{module}", module)
        for layer in (range(base.num_layers) if layers is None else layers)
        for module in modules
        if module != "lm_head"
    ]
    if "lm_head" in modules:
        paths.append((f"{head.removesuffix('model.')}lm_head", "lm_head"))
    tensors: Tensors = {}
    for path, module in paths:
        in_features, out_features = features[module]
        own_rank = rank if isinstance(rank, int) else rank[module]
        a = random.standard_normal((own_rank, in_features), dtype=np.float32)
        b = random.standard_normal((out_features, own_rank), dtype=np.float32)
        tensors[f"{path}.lora_A.weight"] = stored(a * 0.1, dtype)
        tensors[f"{path}.lora_B.weight"] = stored(b * 0.1, dtype)
    return tensors


WHOLE: Tensors = {
    f"{HEAD}embed_tokens.weight": zeros((128, 64)),
    "base_model.model.lm_head.weight": zeros((128, 64)),
}
"""Whole modules that stand for the embedding and the head of the tiny base."""
EMBEDDING_MATRICES: Tensors = {
    f"{HEAD}embed_tokens.lora_embedding_A": zeros((8, 128)),
    f"{HEAD}embed_tokens.lora_embedding_B": zeros((64, 8)),
}
"""A and B of the tiny base's embedding."""


def renamed(tensors: Tensors, old: str, new: str) -> Tensors:
    return {name.replace(old, new): tensor for name, tensor in tensors.items()}


def header_of(tensors: Tensors) -> dict[str, Any]:
    """The header that describes `tensors`, one after another."""
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    position = 0
    for name, tensor in tensors.items():
        end = position + len(tensor.data)
        header[name] = {
            "dtype": tensor.dtype,
            "shape": list(tensor.shape),
            "data_offsets": [position, end],
        }
        position = end
    return header


def safetensors_bytes(tensors: Tensors, header: Mapping[str, Any] | bytes | None = None) -> bytes:
    """A whole file: `header` (default: the true one), and the tensors' data."""
    if not isinstance(header, bytes):
        header = json.dumps(header_of(tensors) if header is None else header).encode()
    data = b"".join(tensor.data for tensor in tensors.values())
    return len(header).to_bytes(8, "little") + header + data


def write_adapter(
    folder: Path, tensors: Tensors, config: Mapping[str, object] | None = None
) -> tuple[dict[str, Path], str]:
    """An adapter's two files in `folder`: (file name -> path, digest), ready for a store."""
    folder.mkdir(parents=True, exist_ok=True)
    files = {CONFIG_FILE: folder / CONFIG_FILE, WEIGHTS_FILE: folder / WEIGHTS_FILE}
    files[CONFIG_FILE].write_bytes(json.dumps(config or plain_config()).encode())
    files[WEIGHTS_FILE].write_bytes(safetensors_bytes(tensors))
    return files, adapter_digest(hash_file(path, name) for name, path in files.items())


class ManifestReader:
    """Reads a manifest from parts, through a real file in `folder`."""

    def __init__(self, folder: Path) -> None:
        self.weights = folder / WEIGHTS_FILE

    def __call__(
        self,
        config: Mapping[str, object] | bytes | None = None,
        tensors: Tensors | bytes | None = None,
        *,
        base: BaseSpec = TINY_BASE,
        known_bases: Iterable[str] = (),
        limits: ManifestLimits = DEFAULT_LIMITS,
    ) -> AdapterManifest:
        """Parts that are not given are those of a plain adapter, which is accepted."""
        if not isinstance(config, bytes):
            config = json.dumps(plain_config() if config is None else config).encode()
        if not isinstance(tensors, bytes):
            tensors = safetensors_bytes(lora_tensors() if tensors is None else tensors)
        self.weights.write_bytes(tensors)
        return read_manifest(
            config, self.weights, base, known_bases=frozenset(known_bases), limits=limits
        )
