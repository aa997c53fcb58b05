"""Of the modules that PEFT matches targets against, none is left out."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM, Phi3Config, Phi3ForCausalLM

from lora.sites import FUSED
from lora.unadaptable import unadaptable_paths
from tests.builders.adapters import TINY_BASE

SHAPE = {"hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 3, "vocab_size": 128}
PARTS = {part for site in FUSED.values() for part in site.modules}


@pytest.mark.parametrize(
    ("architecture", "config", "fused"),
    [
        (LlamaForCausalLM, LlamaConfig(**SHAPE, num_attention_heads=4), ()),
        (Phi3ForCausalLM, Phi3Config(**SHAPE, num_attention_heads=4, pad_token_id=0), (*FUSED,)),
    ],
)
def test_the_modules_of_a_trained_model_are_all_known(
    architecture: Any, config: Any, fused: tuple[str, ...]
) -> None:
    with torch.device("meta"):
        model = architecture(config)
    linear = {*TINY_BASE.linear_modules(), *fused} - (PARTS if fused else set())
    adaptable = {"model.embed_tokens", "lm_head"} | {
        f"model.layers.{layer}.{module}" for layer in range(3) for module in linear
    }
    unadaptable = set(unadaptable_paths(TINY_BASE, "model.", fused))
    # A model with fused projections may call its activation by either name.
    unadaptable -= {f"model.layers.{i}.mlp.act_fn" for i in range(3)} if fused else set()
    modules = {name for name, _ in model.named_modules() if name}
    assert modules == adaptable | unadaptable
    assert adaptable.isdisjoint(unadaptable)
