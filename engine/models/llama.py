"""The Llama family as data: what its tensors are called in a Hugging Face checkpoint."""

from __future__ import annotations

EMBEDDING = "model.embed_tokens.weight"
NORM = "model.norm.weight"
LM_HEAD = "lm_head.weight"

INPUT_NORM = "model.layers.{layer}.input_layernorm.weight"
POST_ATTENTION_NORM = "model.layers.{layer}.post_attention_layernorm.weight"
MODULE = "model.layers.{layer}.{module}.{kind}"
