"""A tiny Llama base folder without weights: what the API and the manifest reader look at."""

from __future__ import annotations

import json
from pathlib import Path

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

MODEL_ID = "tenfold-test/Tiny-Llama"
SPECIAL_TOKENS = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
CHAT_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n"
    "{{ message['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
CONFIG = {
    "_name_or_path": MODEL_ID,
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 260,
    "max_position_embeddings": 512,
    "tie_word_embeddings": True,
    "eos_token_id": 258,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
}


def write_tiny_base(folder: Path) -> Path:
    """Write config, byte-level tokenizer and chat template to the new `folder`; return it."""
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(CONFIG))
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE({char: i for i, char in enumerate(alphabet)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(token, special=True) for token in SPECIAL_TOKENS])
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(
        json.dumps({"eos_token": "<|im_end|>", "chat_template": CHAT_TEMPLATE})
    )
    return folder


THINKING = (256, 257)
"""Ids of `<think>` and `</think>` in `write_thinking_base`'s."""


def write_thinking_base(folder: Path) -> Path:
    """The tiny base, whose tokenizer has tokens for reasoning in the place of two others."""
    path = write_tiny_base(folder) / "tokenizer.json"
    content = path.read_text()
    for old, new in zip(SPECIAL_TOKENS, ("<think>", "</think>"), strict=False):
        content = content.replace(old, new)
    path.write_text(content)
    return folder
