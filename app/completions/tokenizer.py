"""The base model's tokenizer as the API needs it: text to ids, and ids back to text.

Knows nothing of HTTP or of adapters (they share the base's tokenizer). Invariant: the ids are
those that `transformers` makes: a rendered chat template is encoded as it stands, for it spells its
own special tokens, and a plain prompt gets what the tokenizer's post-processor adds.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import tokenizers

from app.completions.chat_template import ChatTemplate
from app.completions.detokenizer import Detokenizer, Vocabulary, read_vocabulary

_SPECIAL_TOKENS = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token")
_MAX_THREADS = 32


def _threads() -> ThreadPoolExecutor:
    num = min(_MAX_THREADS, (os.cpu_count() or 1) + 4)  # as asyncio's own
    return ThreadPoolExecutor(num, thread_name_prefix="prompts")


@dataclass(frozen=True, slots=True)
class Tokenizer:
    """Built once per process; safe to use from several threads."""

    model: tokenizers.Tokenizer
    vocabulary: Vocabulary
    chat_template: ChatTemplate | None
    special_tokens: Mapping[str, str] = field(default_factory=dict)
    threads: ThreadPoolExecutor = field(default_factory=_threads, compare=False)
    """In which prompts are made: of their own, so that none waits for a disk or a bucket."""

    @classmethod
    def from_folder(cls, folder: Path) -> Tokenizer:
        """Read `tokenizer.json`, `tokenizer_config.json` and `chat_template.jinja` of an HF folder.

        Raises OSError for a missing tokenizer.json, UnsupportedTokenizerError, ChatTemplateError.
        """
        model = tokenizers.Tokenizer.from_str((folder / "tokenizer.json").read_text("utf-8"))
        model.no_truncation()
        model.no_padding()
        config = _read_json(folder / "tokenizer_config.json")
        source = _template_source(folder, config)
        special = read_special_tokens(folder)
        template = ChatTemplate(source, special) if source is not None else None
        return cls(model, read_vocabulary(model), template, special)

    def encode_prompt(self, text: str) -> list[int]:
        """Ids of a plain prompt, with the special tokens that the tokenizer itself adds."""
        return list(self.model.encode(text, add_special_tokens=True).ids)

    def encode_chat(self, rendered: str) -> list[int]:
        """Ids of a rendered chat template, which spells its own special tokens."""
        return list(self.model.encode(rendered, add_special_tokens=False).ids)

    def start_detokenizer(self) -> Detokenizer:
        return self.vocabulary.start()


def _read_json(path: Path) -> dict[str, Any]:
    if not path.is_file():
        return {}
    content = json.loads(path.read_text("utf-8"))
    return content if isinstance(content, dict) else {}


def _template_source(folder: Path, config: dict[str, Any]) -> str | None:
    """The default chat template; a file of its own wins, as in transformers."""
    file = folder / "chat_template.jinja"
    if file.is_file():
        return file.read_text("utf-8")
    source = config.get("chat_template")
    if isinstance(source, list):
        named = {entry["name"]: entry["template"] for entry in source}
        source = named.get("default")
    return source if isinstance(source, str) else None


def read_special_tokens(folder: Path) -> dict[str, str]:
    """What templates call `bos_token`, `eos_token`, ...: those that an HF folder names.

    Each is a string there, or `{"content": ...}`. Raises OSError, ValueError.
    """
    of_map = _read_json(folder / "special_tokens_map.json")
    config = of_map | _read_json(folder / "tokenizer_config.json")
    tokens = {}
    for name in _SPECIAL_TOKENS:
        value = config.get(name)
        text = value.get("content") if isinstance(value, dict) else value
        if isinstance(text, str):
            tokens[name] = text
    return tokens
