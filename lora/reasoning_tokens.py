"""Which tokens of a base's tokenizer enclose its reasoning.

Knows nothing of answers. Invariant: each is one token of `tokenizer.json`, or there are none.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path

NAMES = ("<think>", "</think>")
KEY = "reasoning_tokens"
"""In `generation_config.json` or `config.json`: two other names, or null for none."""
_SPELLINGS = (b"<think>", b"\\u003cthink")


def find_reasoning_tokens(
    folder: Path, configs: Iterable[Mapping[str, object]]
) -> tuple[int, int] | None:
    """Ids of the opening and the closing token; None where the tokenizer has no such two.

    The first of `configs` that has `reasoning_tokens` says what they are called. Raises ValueError
    where that names no two tokens of this tokenizer.
    """
    path = folder / "tokenizer.json"
    for config in configs:
        if KEY in config:
            return _of_names(config[KEY], path)
    content = path.read_bytes() if path.is_file() else b""
    # Most bases have none, and no large file is parsed to find that out.
    if not any(spelling in content for spelling in _SPELLINGS):
        return None
    ids = _token_ids(content)
    return (ids[NAMES[0]], ids[NAMES[1]]) if ids.keys() >= set(NAMES) else None


def _of_names(names: object, path: Path) -> tuple[int, int] | None:
    if names is None:
        return None
    if not isinstance(names, list) or len({name for name in names if isinstance(name, str)}) != 2:
        raise ValueError(f"{KEY} must be two different names of tokens, not {names!r}")
    ids = _token_ids(path.read_bytes()) if path.is_file() else {}
    missing = [name for name in names if name not in ids]
    if missing:
        raise ValueError(f"{KEY} names {missing}: no single tokens of tokenizer.json")
    return ids[names[0]], ids[names[1]]


def _token_ids(content: bytes) -> dict[str, int]:
    """Every single token by its text: of the vocabulary, and those that were added to it."""
    tokenizer = json.loads(content)
    vocabulary = tokenizer.get("model", {}).get("vocab")
    ids: dict[str, int] = dict(vocabulary) if isinstance(vocabulary, dict) else {}
    return ids | {token["content"]: token["id"] for token in tokenizer.get("added_tokens") or ()}
