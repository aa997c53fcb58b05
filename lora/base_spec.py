"""What an adapter is checked against: the shapes and the identity of the base model.

Knows nothing of tensors' values. Invariant: two bases with equal `fingerprint` have the same
configuration and the same tokenizer.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from lora.digest import hash_file
from lora.reasoning_tokens import find_reasoning_tokens

SUPPORTED_ARCHITECTURES = ("LlamaForCausalLM",)

# NOTE: the canonical order of modules: of a manifest, of pages, of whatever walks an adapter.
MODULES = (
    "self_attn.q_proj",
    "self_attn.k_proj",
    "self_attn.v_proj",
    "self_attn.o_proj",
    "mlp.gate_proj",
    "mlp.up_proj",
    "mlp.down_proj",
)

# Fields that say where a copy came from or how it was stored, not what it computes.
_NOT_IDENTITY = frozenset({"_name_or_path", "transformers_version", "torch_dtype", "dtype"})


class UnsupportedBaseError(ValueError):
    """The folder is not a base model that Tenfold can serve; the message says why."""


@dataclass(frozen=True, slots=True)
class BaseSpec:
    """Shapes, names and identity of one base model of the Llama family."""

    model_id: str
    known_names: frozenset[str]
    architecture: str
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    vocab_size: int
    max_model_len: int
    tie_word_embeddings: bool
    attention_bias: bool
    mlp_bias: bool
    eos_token_ids: tuple[int, ...]
    fingerprint: str
    reasoning_token_ids: tuple[int, int] | None = None
    """Of the tokens that open and close what of an answer is reasoning, where it has such."""

    @classmethod
    def from_folder(cls, path: Path, model_id: str | None = None) -> BaseSpec:
        """Read `config.json`, and `generation_config.json` and `tokenizer.json` where present.

        `model_id` defaults to the config's `_name_or_path`, then to the folder's name.

        Raises:
            UnsupportedBaseError: not a readable configuration of the Llama family.
        """
        config = _read_json(path / "config.json")
        architecture = _architecture(config)
        name = config.get("_name_or_path")
        names = [name] if isinstance(name, str) and name else []
        served_id = model_id or (names[0] if names else path.resolve().name)
        num_heads = _positive(config, "num_attention_heads")
        hidden_size = _positive(config, "hidden_size")
        return cls(
            model_id=served_id,
            known_names=frozenset([served_id, *names]),
            architecture=architecture,
            hidden_size=hidden_size,
            intermediate_size=_positive(config, "intermediate_size"),
            num_layers=_positive(config, "num_hidden_layers"),
            num_heads=num_heads,
            num_kv_heads=_positive(config, "num_key_value_heads", num_heads),
            head_dim=_positive(config, "head_dim", hidden_size // num_heads),
            vocab_size=_positive(config, "vocab_size"),
            max_model_len=_positive(config, "max_position_embeddings"),
            tie_word_embeddings=config.get("tie_word_embeddings") is True,
            attention_bias=config.get("attention_bias") is True,
            mlp_bias=config.get("mlp_bias") is True,
            eos_token_ids=_eos_token_ids(path, config),
            fingerprint=_fingerprint(path, config),
            reasoning_token_ids=_reasoning_token_ids(path, config),
        )

    def linear_modules(self) -> dict[str, tuple[int, int]]:
        """Each linear module of a layer, in canonical order: name -> (in, out) features."""
        query = self.num_heads * self.head_dim
        key_value = self.num_kv_heads * self.head_dim
        features = (
            (self.hidden_size, query),
            (self.hidden_size, key_value),
            (self.hidden_size, key_value),
            (query, self.hidden_size),
            (self.hidden_size, self.intermediate_size),
            (self.hidden_size, self.intermediate_size),
            (self.intermediate_size, self.hidden_size),
        )
        return dict(zip(MODULES, features, strict=True))

    def biased_modules(self) -> frozenset[str]:
        """The linear modules of a layer that have a bias."""
        return frozenset(
            module
            for module in MODULES
            if (self.attention_bias if module.startswith("self_attn.") else self.mlp_bias)
        )


def _architecture(config: Mapping[str, object]) -> str:
    declared = config.get("architectures")
    if not declared and config.get("model_type") == "llama":
        return SUPPORTED_ARCHITECTURES[0]
    architecture = declared[0] if isinstance(declared, list) and declared else None
    if architecture not in SUPPORTED_ARCHITECTURES:
        raise UnsupportedBaseError(
            f"architecture {architecture!r} is not served; supported: "
            + ", ".join(SUPPORTED_ARCHITECTURES)
        )
    return str(architecture)


def _positive(config: Mapping[str, object], key: str, default: int | None = None) -> int:
    value = config.get(key)
    if value is None:
        value = default
    if type(value) is not int or value <= 0:
        raise UnsupportedBaseError(f"config.json: {key} must be a positive integer, not {value!r}")
    return value


def _eos_token_ids(path: Path, config: Mapping[str, object]) -> tuple[int, ...]:
    """The generation config's ids first, as transformers does, then the config's own."""
    ids: list[int] = []
    for source in _sources(path, config):
        value = source.get("eos_token_id")
        ids += value if isinstance(value, list) else [value] if isinstance(value, int) else []
    return tuple(dict.fromkeys(ids))


def _reasoning_token_ids(path: Path, config: Mapping[str, object]) -> tuple[int, int] | None:
    try:
        return find_reasoning_tokens(path, _sources(path, config))
    except ValueError as error:
        raise UnsupportedBaseError(str(error)) from None


def _sources(path: Path, config: Mapping[str, object]) -> list[Mapping[str, object]]:
    """Where a setting of generation may be: in its own configuration first."""
    generation = path / "generation_config.json"
    return [*([_read_json(generation)] if generation.is_file() else []), config]


def _fingerprint(path: Path, config: Mapping[str, object]) -> str:
    tokenizer = path / "tokenizer.json"
    identity = {
        "config": {key: value for key, value in config.items() if key not in _NOT_IDENTITY},
        "tokenizer": hash_file(tokenizer).sha256 if tokenizer.is_file() else None,
    }
    canonical = json.dumps(identity, sort_keys=True, separators=(",", ":")).encode()
    return f"sha256:{hashlib.sha256(canonical).hexdigest()}"


def _read_json(path: Path) -> dict[str, object]:
    try:
        value = json.loads(path.read_bytes())
    except FileNotFoundError:
        raise UnsupportedBaseError(f"{path} is missing") from None
    except ValueError as error:
        raise UnsupportedBaseError(f"{path} is not JSON: {error}") from None
    if not isinstance(value, dict):
        raise UnsupportedBaseError(f"{path} does not hold an object")
    return value
