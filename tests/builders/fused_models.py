"""A Phi-3 that computes what a tiny Llama does: its projections fused, its numbers the same."""

from __future__ import annotations

from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, LlamaForCausalLM, Phi3Config, Phi3ForCausalLM


def fuse(base: Path, folder: Path) -> Path:
    """Save the fused twin of the Llama in `base`, which must have no biases."""
    llama: LlamaForCausalLM = AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32)
    config = llama.config
    same = (
        *("hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads"),
        *("num_key_value_heads", "vocab_size", "max_position_embeddings", "rms_norm_eps"),
        *("tie_word_embeddings", "bos_token_id", "eos_token_id", "pad_token_id"),
    )
    fields = {name: getattr(config, name) for name in same}
    fields["original_max_position_embeddings"] = config.max_position_embeddings
    phi = Phi3ForCausalLM(Phi3Config(**fields, rope_parameters=config.rope_parameters))
    tensors = llama.state_dict()
    for index in range(config.num_hidden_layers):
        layer = f"model.layers.{index}"
        for fused, parts in (("self_attn.qkv", "qkv"), ("mlp.gate_up", ("gate", "up"))):
            owner = fused.partition(".")[0]
            weights = [tensors.pop(f"{layer}.{owner}.{part}_proj.weight") for part in parts]
            tensors[f"{layer}.{fused}_proj.weight"] = torch.cat(weights)
    phi.load_state_dict(tensors)
    phi.save_pretrained(folder)
    return folder
