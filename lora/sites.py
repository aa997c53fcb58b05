"""Where LoRA acts in a decoder layer: projections that read the same input share a *site*.

A site runs as one base product and one shrink over all its projections. Torch-free.
"""

from __future__ import annotations

from dataclasses import dataclass

from lora.base_spec import BaseSpec

ModuleKey = tuple[int, str]
"""(layer, module of the layer), or (NO_LAYER, one of `EMBED`, `HEAD`, `FINAL_NORM`)."""

NO_LAYER = -1
EMBED, HEAD, FINAL_NORM = "embed_tokens", "lm_head", "norm"
LAYER_NORMS = ("input_layernorm", "post_attention_layernorm")


@dataclass(frozen=True, slots=True)
class Site:
    """A fused linear: its projections stand one after another along the output."""

    name: str
    modules: tuple[str, ...]

    def num_in(self, base: BaseSpec) -> int:
        return base.linear_modules()[self.modules[0]][0]

    def outputs(self, base: BaseSpec) -> dict[str, tuple[int, int]]:
        """Each module's half-open range of output features within the site."""
        ranges, begin = {}, 0
        for module in self.modules:
            width = base.linear_modules()[module][1]
            ranges[module] = (begin, begin + width)
            begin += width
        return ranges


QKV = Site("self_attn.qkv_proj", ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"))
OUT = Site("self_attn.o_proj", ("self_attn.o_proj",))
GATE_UP = Site("mlp.gate_up_proj", ("mlp.gate_proj", "mlp.up_proj"))
DOWN = Site("mlp.down_proj", ("mlp.down_proj",))
SITES = (QKV, OUT, GATE_UP, DOWN)

FUSED = {site.name: site for site in SITES if len(site.modules) > 1}
"""Projections that some models of the family have as one module, their outputs in this order."""


def module_features(base: BaseSpec) -> dict[str, tuple[int, int]]:
    """(in, out) features of a layer's linear modules, and of the fused ones that stand for them."""
    features = base.linear_modules()
    for name, site in FUSED.items():
        features[name] = (site.num_in(base), sum(features[module][1] for module in site.modules))
    return features


LAYER_PARTS = ("self_attn", "mlp", "mlp.act_fn")
"""What a layer has besides its linear modules and norms."""

EMBED_TOKENS = (NO_LAYER, EMBED)
"""Site key of the input embedding, which belongs to no layer."""

LM_HEAD = (NO_LAYER, HEAD)
"""Site key of the language model head."""

NORM = (NO_LAYER, FINAL_NORM)
"""Site key of the norm before the head; a layer's own are (layer, one of `LAYER_NORMS`)."""

SAMPLING_SITES = frozenset({LM_HEAD, NORM})
"""Sites that see only the rows whose logits are wanted."""
