"""A base model that is nothing but its limits: those of `tests/builders/tiny_base.py`'s."""

from __future__ import annotations

from lora.base_spec import BaseSpec

MODEL_ID = "tenfold-test/Tiny-Llama"


def stub_base(vocab_size: int = 260, max_model_len: int = 512) -> BaseSpec:
    """Tokens are ids below `vocab_size`; a sequence has at most `max_model_len` of them."""
    return BaseSpec(
        model_id=MODEL_ID,
        known_names=frozenset({MODEL_ID}),
        architecture="LlamaForCausalLM",
        hidden_size=64,
        intermediate_size=96,
        num_layers=3,
        num_heads=4,
        num_kv_heads=2,
        head_dim=16,
        vocab_size=vocab_size,
        max_model_len=max_model_len,
        tie_word_embeddings=True,
        attention_bias=False,
        mlp_bias=False,
        eos_token_ids=(vocab_size - 2,),
        fingerprint="sha256:" + "5" * 64,
    )
