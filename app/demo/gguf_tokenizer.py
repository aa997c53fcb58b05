"""A GGUF's byte-level BPE vocabulary as the Hugging Face tokenizer files it was made from.

Knows nothing of weights. Invariant: ids are those of the GGUF; text splits as SmolLM2's own
tokenizer.json does (each digit alone, then GPT-2's pattern over bytes).
"""

from __future__ import annotations

from typing import Any

_CONTROL_TOKEN = 3  # gguf.TokenType.CONTROL


def tokenizer_json(tokens: list[str], token_types: list[int], merges: list[str]) -> dict[str, Any]:
    """The content of tokenizer.json (Hugging Face `tokenizers`, version 1.0)."""
    special_ids = [i for i, kind in enumerate(token_types) if kind == _CONTROL_TOKEN]
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True}
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [_special_token(i, tokens[i]) for i in special_ids],
        "normalizer": None,
        "pre_tokenizer": {
            "type": "Sequence",
            "pretokenizers": [
                {"type": "Digits", "individual_digits": True},
                byte_level | {"use_regex": True},
            ],
        },
        "post_processor": None,
        "decoder": byte_level | {"add_prefix_space": True, "use_regex": True},
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "byte_fallback": False,
            "ignore_merges": False,
            "vocab": {token: i for i, token in enumerate(tokens)},
            "merges": [merge.split(" ") for merge in merges],
        },
    }


def tokenizer_config(
    tokens: list[str],
    *,
    bos_id: int,
    eos_id: int,
    pad_id: int,
    unk_id: int,
    max_length: int,
    chat_template: str,
) -> dict[str, Any]:
    """The content of tokenizer_config.json."""
    return {
        # NOTE: not GPT2Tokenizer, which rebuilds its own pre-tokenizer and loses the digit split.
        "tokenizer_class": "PreTrainedTokenizerFast",
        "add_prefix_space": False,
        "clean_up_tokenization_spaces": False,
        "model_max_length": max_length,
        "bos_token": tokens[bos_id],
        "eos_token": tokens[eos_id],
        "pad_token": tokens[pad_id],
        "unk_token": tokens[unk_id],
        "chat_template": chat_template,
    }


def _special_token(token_id: int, content: str) -> dict[str, Any]:
    return {
        "id": token_id,
        "content": content,
        "single_word": False,
        "lstrip": False,
        "rstrip": False,
        "normalized": False,
        "special": True,
    }
