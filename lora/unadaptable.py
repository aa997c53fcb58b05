"""The modules of a trained model that PEFT cannot adapt: norms, and what holds other modules.

Knows nothing of patterns. Invariant: with the linear modules, the embedding and the head these are
all that PEFT matches a name or a regex against.

Source: the modules of transformers' LlamaForCausalLM and Phi3ForCausalLM.
"""

from __future__ import annotations

from collections.abc import Collection

from lora.base_spec import BaseSpec
from lora.sites import LAYER_NORMS, LAYER_PARTS

_IN_BODY = ("norm", "layers", "rotary_emb")
_IN_LAYER = (*LAYER_NORMS, *LAYER_PARTS)
# What a model with fused projections has besides, by Phi-3's names.
_BESIDE_FUSED = ("mlp.activation_fn", "resid_attn_dropout", "resid_mlp_dropout")


def unadaptable_paths(base: BaseSpec, prefix: str, fused: Collection[str]) -> list[str]:
    """Their paths, where the layers' begin with `prefix` and `layers.`."""
    names = prefix.split(".")[:-1]
    around = [".".join(names[: position + 1]) for position in range(len(names))]
    body = [f"{prefix}{name}" for name in _IN_BODY]
    parts = (*_IN_LAYER, *(_BESIDE_FUSED if fused else ()))
    layers = [f"{prefix}layers.{layer}" for layer in range(base.num_layers)]
    return [*around, *body, *layers, *(f"{layer}.{part}" for layer in layers for part in parts)]
