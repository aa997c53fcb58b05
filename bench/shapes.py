"""The base models that benches and floors speak of, as shapes alone. Torch-free.

Knows nothing of weights. Source: the models' published configurations.
"""

from __future__ import annotations

from dataclasses import replace

from lora.base_spec import MODULES, BaseSpec

LLAMA_3_8B = BaseSpec(
    model_id="meta-llama/Meta-Llama-3-8B",
    known_names=frozenset({"meta-llama/Meta-Llama-3-8B"}),
    architecture="LlamaForCausalLM",
    hidden_size=4096,
    intermediate_size=14336,
    num_layers=32,
    num_heads=32,
    num_kv_heads=8,
    head_dim=128,
    vocab_size=128256,
    max_model_len=8192,
    tie_word_embeddings=False,
    attention_bias=False,
    mlp_bias=False,
    eos_token_ids=(128001,),
    fingerprint="shapes-only",
)
SMOLLM2_135M = replace(
    LLAMA_3_8B,
    model_id="HuggingFaceTB/SmolLM2-135M-Instruct",
    known_names=frozenset({"HuggingFaceTB/SmolLM2-135M-Instruct"}),
    hidden_size=576,
    intermediate_size=1536,
    num_layers=30,
    num_heads=9,
    num_kv_heads=3,
    head_dim=64,
    vocab_size=49152,
    tie_word_embeddings=True,
    eos_token_ids=(2,),
)
# For dry runs: an odd group size, and no width that is a multiple of a kernel's block.
TOY = replace(
    LLAMA_3_8B,
    model_id="toy",
    known_names=frozenset({"toy"}),
    hidden_size=96,
    intermediate_size=160,
    num_layers=2,
    num_heads=6,
    num_kv_heads=2,
    head_dim=16,
    vocab_size=320,
    max_model_len=512,
    eos_token_ids=(0,),
)

TARGET_SETS: dict[str, tuple[str, ...]] = {
    "all-linear": MODULES,
    "q/k/v/o": MODULES[:4],
    "q/v": ("self_attn.q_proj", "self_attn.v_proj"),
}
