"""A module of the base as a trainer's model called it: its prefix, its layer, what it is there.

Knows nothing of tensors. Invariant: a function of the segments alone.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from lora.sites import EMBED, FINAL_NORM, HEAD, LAYER_NORMS, NO_LAYER, ModuleKey

_INDEX = re.compile(r"0|[1-9][0-9]{0,5}")

# What may stand before `layers.N`: a causal model, its bare body, or the text part of a larger
# model whose text part is this base; and what then stands before `lm_head`.
_HEAD_PREFIXES = {
    "model.": ("",),
    "": ("",),
    "model.language_model.": ("",),
    "language_model.model.": ("language_model.", ""),
    "language_model.": ("", "language_model."),
    "model.text_model.": ("",),
    "text_model.": ("", "text_model."),
}
_CANONICAL_PREFIX = "model."
_OTHER_TOWERS = re.compile(r"vision|visual|image|audio|speech")

EMBEDDINGS = frozenset({EMBED, HEAD})
NORMS = frozenset({FINAL_NORM, *LAYER_NORMS})


@dataclass(frozen=True, slots=True)
class ModulePath:
    """A module as the trainer's model called it, such as `model.layers.3.self_attn.q_proj`.

    `prefix` is what stands before `layers.`, or before a module that belongs to no layer; `index`
    is the layer as written and `module` what follows it (without a layer, the last segment).
    """

    path: str
    prefix: str
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
    def key(self) -> ModuleKey | None:
        """The module, or None where no layer is named and none is needed."""
        if self.index:
            layer = self.layer
            return None if layer is None else (layer, self.module)
        return (NO_LAYER, self.module) if self.module in EMBEDDINGS | {FINAL_NORM} else None

    @property
    def is_head(self) -> bool:
        return not self.index and self.module == HEAD

    @property
    def has_known_prefix(self) -> bool:
        if self.is_head:
            return any(self.prefix in prefixes for prefixes in _HEAD_PREFIXES.values())
        return self.prefix in _HEAD_PREFIXES

    def fits_beside(self, prefix: str) -> bool:
        """Whether this module may be of a model whose layers stand behind `prefix`."""
        if self.is_head:
            return self.prefix in _HEAD_PREFIXES.get(prefix, ())
        return self.prefix == prefix

    @property
    def is_canonical(self) -> bool:
        return self.prefix == ("" if self.is_head else _CANONICAL_PREFIX)

    @property
    def is_of_another_tower(self) -> bool:
        """Whether it belongs to the vision or audio part of a larger model."""
        return _OTHER_TOWERS.search(self.path) is not None


def module_path(segments: list[str]) -> ModulePath:
    path = ".".join(segments)
    if "layers" not in segments:
        before = "".join(f"{segment}." for segment in segments[:-1])
        return ModulePath(path, before, "", segments[-1] if segments else "")
    position = segments.index("layers")
    return ModulePath(
        path,
        "".join(f"{segment}." for segment in segments[:position]),
        # NOTE: a layer without a number is still a layer: its index is not one.
        ".".join(segments[position + 1 : position + 2]) or "?",
        ".".join(segments[position + 2 :]),
    )
