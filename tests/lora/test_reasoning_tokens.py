"""Which tokens enclose a base's reasoning is read from its folder."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from lora.base_spec import BaseSpec, UnsupportedBaseError
from tests.builders.tiny_base import CONFIG, write_tiny_base


def write_base(
    folder: Path, added: dict[str, int], vocabulary: dict[str, int] | None = None, **told: Any
) -> BaseSpec:
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(CONFIG))
    (folder / "generation_config.json").write_text(json.dumps(told))
    tokens = [{"id": token_id, "content": name} for name, token_id in added.items()]
    tokenizer = {"added_tokens": tokens, "model": {"type": "BPE", "vocab": vocabulary or {}}}
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    return BaseSpec.from_folder(folder)


@pytest.mark.parametrize(
    ("added", "vocabulary", "told", "found"),
    [
        ({"<think>": 7, "</think>": 8}, {"a": 0}, {}, (7, 8)),
        ({}, {"a": 0, "<think>": 7, "</think>": 8}, {}, (7, 8)),
        ({"<think>": 7}, {"<": 0, "think": 1, "/": 2, ">": 3}, {}, None),
        ({}, {"<": 0, "think": 1, "/": 2, ">": 3}, {}, None),
        ({"[THINK]": 5, "[/THINK]": 6}, {}, {"reasoning_tokens": ["[THINK]", "[/THINK]"]}, (5, 6)),
        ({"[THINK]": 5, "[/THINK]": 6}, {}, {}, None),
        ({"<think>": 7, "</think>": 8}, {}, {"reasoning_tokens": None}, None),
    ],
)
def test_they_are_single_tokens_of_the_tokenizer_or_there_are_none(
    tmp_path: Path,
    added: dict[str, int],
    vocabulary: dict[str, int],
    told: dict[str, Any],
    found: tuple[int, int] | None,
) -> None:
    base = write_base(tmp_path / "base", added, vocabulary, **told)
    assert base.reasoning_token_ids == found


@pytest.mark.parametrize(
    "told", [["[THINK]", "[/THINK]"], ["<think>"], ["<think>", "<think>"], [7, 8], "<think>"]
)
def test_a_configuration_that_names_no_two_tokens_is_refused(tmp_path: Path, told: object) -> None:
    with pytest.raises(UnsupportedBaseError, match="reasoning_tokens"):
        write_base(tmp_path / "base", {"<think>": 7, "</think>": 8}, reasoning_tokens=told)


def test_a_base_without_them_has_none(tmp_path: Path) -> None:
    assert BaseSpec.from_folder(write_tiny_base(tmp_path / "base")).reasoning_token_ids is None


def test_what_a_generation_is_told_is_not_part_of_a_bases_identity(tmp_path: Path) -> None:
    tokens = {"<think>": 7, "</think>": 8, "[THINK]": 5, "[/THINK]": 6}
    plain = write_base(tmp_path / "a", tokens)
    told = write_base(tmp_path / "b", tokens, reasoning_tokens=["[THINK]", "[/THINK]"])
    assert plain.fingerprint == told.fingerprint
    assert plain.reasoning_token_ids != told.reasoning_token_ids
