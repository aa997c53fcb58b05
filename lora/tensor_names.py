"""What a tensor's name says: whose matrix it is, after the wrappers of trainers are taken off.

Knows nothing of shapes, of the configuration or of the base's size. Invariant: parsing is a
function of the name alone; whether all names of a file agree is checked by whoever asks.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum
from typing import Literal

_VALID = re.compile(r"[A-Za-z0-9_.\-]{1,512}")
_INDEX = re.compile(r"0|[1-9][0-9]{0,5}")

# Segments that torch.compile, FSDP and activation checkpointing put anywhere into a path.
_TRANSPARENT = frozenset({"_orig_mod", "_fsdp_wrapped_module", "_checkpoint_wrapped_module"})
_PEFT_HEAD = ("base_model", "model")
_CANONICAL_HEAD = "base_model.model.model."

# What may stand before `layers.N`: a causal model, its bare body, or the text part of a larger
# model whose text part is this base.
_PREFIXES = frozenset(
    {
        "model.",
        "",
        "model.language_model.",
        "language_model.model.",
        "language_model.",
        "model.text_model.",
        "text_model.",
    }
)
_OTHER_TOWERS = re.compile(r"vision|visual|image|audio|speech")

EMBEDDINGS = frozenset({"embed_tokens", "lm_head"})
_NORMS = frozenset({"norm", "input_layernorm", "post_attention_layernorm"})

Side = Literal["A", "B"]
_SIDES: dict[str, Side] = {"lora_A": "A", "lora_B": "B"}


class NameKind(StrEnum):
    """What a tensor is, as far as its name can tell."""

    LORA = "lora"
    MLX = "mlx"
    KOHYA = "kohya"
    INVALID = "invalid"
    VARIANT = "variant"
    BIAS = "bias"
    TOKENS = "tokens"
    EMBEDDING_LORA = "embedding_lora"
    EMBEDDING = "embedding"
    SAVED_MODULE = "saved_module"
    BASE_WEIGHT = "base_weight"
    OTHER = "other"


@dataclass(frozen=True, slots=True)
class ModulePath:
    """A module as the trainer's model called it, such as `model.layers.3.self_attn.q_proj`.

    `prefix` is what stands before `layers.`, or None where no layer is named; `index` is the layer
    as written and `module` what follows it (without a layer, the whole path).
    """

    path: str
    prefix: str | None
    index: str
    module: str

    @property
    def leaf(self) -> str:
        return self.path.rpartition(".")[2]

    @property
    def layer(self) -> int | None:
        """The layer's number, or None where it is not written as one."""
        return int(self.index) if _INDEX.fullmatch(self.index) else None

    @property
    def has_known_prefix(self) -> bool:
        return self.prefix in _PREFIXES

    @property
    def is_of_another_tower(self) -> bool:
        """Whether it belongs to the vision or audio part of a larger model."""
        return _OTHER_TOWERS.search(self.path) is not None


@dataclass(frozen=True, slots=True)
class TensorName:
    """A name taken apart. `head` is what was taken off before `layers.` or before the module.

    `side` and `adapter` (a name in `lora_A.<adapter>.weight`) are set for LORA alone.
    """

    kind: NameKind
    module: ModulePath
    head: str = ""
    is_canonical: bool = False
    side: Side = "A"
    adapter: str | None = None


def parse_name(name: str) -> TensorName:
    """Take `name` apart. Never raises: an odd name is INVALID or OTHER."""
    if _VALID.fullmatch(name) is None:
        return TensorName(NameKind.INVALID, _module_path([]))
    raw = [segment for segment in name.split(".") if segment not in _TRANSPARENT]
    segments = _without_heads(raw)
    head = ".".join(raw[: len(raw) - len(segments)])
    if _is_lora(segments):
        return _lora_name(name, segments, head)
    return TensorName(_kind(segments), _module_path(segments[:-1]), head=head)


def _lora_name(name: str, segments: list[str], head: str) -> TensorName:
    """`<module>.lora_A|B.weight`, or `<module>.lora_A|B.<adapter>.weight`."""
    adapter = None if segments[-2] in _SIDES else segments[-2]
    module = _module_path(segments[: -2 if adapter is None else -3])
    side = _SIDES[segments[-2 if adapter is None else -3]]
    plain = f"{_CANONICAL_HEAD}layers.{module.index}.{module.module}.lora_{side}.weight"
    return TensorName(NameKind.LORA, module, head, name == plain, side, adapter)


def _without_heads(segments: list[str]) -> list[str]:
    """Take off `base_model.model` and DDP's `module`, however often they were put on."""
    position = 0
    while True:
        if tuple(segments[position : position + 2]) == _PEFT_HEAD:
            position += 2
        elif segments[position : position + 1] == ["module"]:
            position += 1
        else:
            return segments[position:]


def _is_lora(segments: list[str]) -> bool:
    return (
        len(segments) > 2
        and segments[-1] == "weight"
        and (segments[-2] in _SIDES or segments[-3] in _SIDES)
    )


def _module_path(segments: list[str]) -> ModulePath:
    path = ".".join(segments)
    if "layers" not in segments:
        return ModulePath(path, None, "", path)
    position = segments.index("layers")
    return ModulePath(
        path,
        "".join(f"{segment}." for segment in segments[:position]),
        ".".join(segments[position + 1 : position + 2]),
        ".".join(segments[position + 2 :]),
    )


def _kind(segments: list[str]) -> NameKind:
    """The kind of a tensor that is not `<module>.lora_A|B[.<adapter>].weight`."""
    if not segments:
        return NameKind.OTHER
    names = set(segments)
    owner = segments[-2] if len(segments) > 1 else ""
    if segments[-1:] in (["lora_a"], ["lora_b"]):
        return NameKind.MLX
    if names & {"lora_down", "lora_up"} or segments[0].startswith(("lora_unet_", "lora_te")):
        return NameKind.KOHYA
    if names & {"lora_magnitude_vector", "lora_diag"}:
        return NameKind.VARIANT
    if names & {"trainable_tokens_delta", "trainable_tokens_original", "token_adapter"}:
        return NameKind.TOKENS
    if names & {"lora_embedding_A", "lora_embedding_B"}:
        return NameKind.EMBEDDING_LORA
    if "modules_to_save" in names:
        return NameKind.SAVED_MODULE
    if segments[-1] == "bias" and ("layers" in names or owner in EMBEDDINGS):
        return NameKind.BIAS
    if segments[-1] == "weight" and names & EMBEDDINGS:
        # PEFT saves the base's own rows beside LoRA on an embedding.
        return NameKind.EMBEDDING_LORA if "base_layer" in names else NameKind.EMBEDDING
    if segments[-1] == "weight" and owner in _NORMS:
        return NameKind.SAVED_MODULE
    if segments[-1] == "weight" and "layers" in names:
        return NameKind.BASE_WEIGHT
    return NameKind.OTHER
