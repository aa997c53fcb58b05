"""What a tensor's name says: whose matrix it is, after the wrappers of trainers are taken off.

Knows nothing of shapes, of the configuration or of the base's size. Invariant: parsing is a
function of the name alone; whether all names of a file agree is checked by whoever asks.

Source: the names that PEFT's `save_pretrained` writes, versions 0.3 to 0.21.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum

from lora.module_path import EMBEDDINGS, NORMS, ModulePath, module_path

_VALID = re.compile(r"[A-Za-z0-9_.\-]{1,512}")

# Segments that torch.compile, FSDP and activation checkpointing put anywhere into a path.
_TRANSPARENT = frozenset({"_orig_mod", "_fsdp_wrapped_module", "_checkpoint_wrapped_module"})
_PEFT_HEAD = ("base_model", "model")
_CANONICAL_HEAD = "base_model.model"


class NameKind(StrEnum):
    """What a tensor is, as far as its name can tell."""

    LORA_A = "lora_A"
    LORA_B = "lora_B"
    LORA_BIAS = "lora_bias"
    MAGNITUDE = "magnitude"
    BIAS = "bias"
    ADAPTED_BIAS = "adapted_bias"
    TOKENS = "tokens"
    WHOLE = "whole"
    SAVED_MODULE = "saved_module"
    BASE_COPY = "base_copy"
    BASE_WEIGHT = "base_weight"
    MLX = "mlx"
    KOHYA = "kohya"
    INVALID = "invalid"
    VARIANT = "variant"
    OTHER = "other"


# How a parameter of PEFT's ends, after the module's path, and its kind. An adapter's name may stand
# where `*` is.
_ENDINGS: tuple[tuple[tuple[str, ...], NameKind], ...] = (
    (("lora_A", "*", "weight"), NameKind.LORA_A),
    (("lora_B", "*", "weight"), NameKind.LORA_B),
    (("lora_embedding_A", "*"), NameKind.LORA_A),
    (("lora_embedding_B", "*"), NameKind.LORA_B),
    (("lora_B", "*", "bias"), NameKind.LORA_BIAS),
    (("lora_magnitude_vector", "*", "weight"), NameKind.MAGNITUDE),
    (("lora_magnitude_vector", "*"), NameKind.MAGNITUDE),
    (("token_adapter", "trainable_tokens_delta", "*"), NameKind.TOKENS),
    (("modules_to_save", "*", "weight"), NameKind.SAVED_MODULE),
    (("base_layer", "weight"), NameKind.BASE_COPY),
    (("base_layer", "bias"), NameKind.ADAPTED_BIAS),
    (("bias",), NameKind.BIAS),
    (("weight",), NameKind.WHOLE),
)


@dataclass(frozen=True, slots=True)
class TensorName:
    """A name taken apart. `head` is what was taken off before the trained model's own path.

    `adapter` is a name that stands within the parameter, as in `lora_A.<adapter>.weight`.
    `is_embedding`: PEFT writes this parameter of an embedding, and of nothing else.
    """

    kind: NameKind
    module: ModulePath
    head: str = ""
    is_canonical: bool = False
    adapter: str | None = None
    is_embedding: bool = False


def parse_name(name: str) -> TensorName:
    """Take `name` apart. Never raises: an odd name is INVALID or OTHER."""
    if _VALID.fullmatch(name) is None:
        return TensorName(NameKind.INVALID, module_path([]))
    raw = [segment for segment in name.split(".") if segment not in _TRANSPARENT]
    segments = _without_heads(raw)
    head = ".".join(raw[: len(raw) - len(segments)])
    foreign = _foreign_kind(segments)
    if foreign is not None:
        return TensorName(foreign, module_path(segments[:-1]), head)
    for ending, kind in _ENDINGS:
        length, adapter = _match(segments, ending)
        if length:
            module = module_path(segments[:-length])
            is_canonical = head == _CANONICAL_HEAD and len(raw) == name.count(".") + 1
            is_canonical = is_canonical and module.is_canonical and adapter is None
            is_embedding = ending[0].startswith("lora_embedding")
            kind = _kind_at(kind, module)
            return TensorName(kind, module, head, is_canonical, adapter, is_embedding)
    return TensorName(NameKind.OTHER, module_path(segments[:-1]), head)


def _kind_at(kind: NameKind, module: ModulePath) -> NameKind:
    """The kind that a parameter has, given the module that it belongs to."""
    known = module.leaf in EMBEDDINGS | NORMS
    if kind is NameKind.SAVED_MODULE and known:
        return NameKind.WHOLE
    if kind is NameKind.WHOLE and not known:
        return NameKind.BASE_WEIGHT if module.index else NameKind.OTHER
    if kind is NameKind.BASE_COPY and module.leaf not in EMBEDDINGS:
        return NameKind.BASE_WEIGHT if module.index else NameKind.OTHER
    if kind in (NameKind.BIAS, NameKind.ADAPTED_BIAS) and not (module.index or known):
        return NameKind.OTHER
    return kind


def _match(segments: list[str], ending: tuple[str, ...]) -> tuple[int, str | None]:
    """How many segments the ending takes, 0 where it does not fit; and the adapter's name."""
    if "*" not in ending:
        fits = len(segments) > len(ending) and tuple(segments[-len(ending) :]) == ending
        return (len(ending) if fits else 0), None
    place = ending.index("*")
    bare = ending[:place] + ending[place + 1 :]
    if (length := _match(segments, bare)[0]) > 0:
        return length, None
    named = segments[-len(ending) :]
    if len(segments) <= len(ending) or named[place] in ("weight", "bias"):
        return 0, None
    fits = tuple(named[:place] + named[place + 1 :]) == bare
    return (len(ending) if fits else 0), (named[place] if fits else None)


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


def _foreign_kind(segments: list[str]) -> NameKind | None:
    """The kind of a tensor of another trainer, or of a variant that is not served."""
    if not segments:
        return NameKind.OTHER
    names = set(segments)
    if segments[-1] in ("lora_a", "lora_b"):
        return NameKind.MLX
    if names & {"lora_down", "lora_up"} or segments[0].startswith(("lora_unet_", "lora_te")):
        return NameKind.KOHYA
    return NameKind.VARIANT if "lora_diag" in names else None
