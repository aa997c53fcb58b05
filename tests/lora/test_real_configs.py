"""Configurations as people publish them: each is accepted or refused for a stated reason.

`data/adapter_configs.json` holds their fields, and what becomes of an adapter that has the tensors
which such a configuration asks of the tiny base.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from lora.base_spec import MODULES
from lora.sites import HEAD
from tests.builders.adapters import HEAD as PREFIX
from tests.builders.adapters import ManifestReader, Tensors, lora_tensors
from tests.builders.refusals import refused, warnings_of

ROWS: list[dict[str, Any]] = json.loads(
    (Path(__file__).parent / "data" / "adapter_configs.json").read_text()
)


def tensors_for(row: dict[str, Any]) -> Tensors:
    """What a training on the tiny base with this configuration would have saved."""
    config: dict[str, Any] = row.get("config", {})
    targets = config.get("target_modules")
    if isinstance(targets, str):
        targets = ["q_proj", "v_proj", "o_proj"]
    modules = [
        each
        for each in (*MODULES, HEAD)
        if each.rpartition(".")[2] in (targets or ("q_proj", "v_proj"))
    ]
    rank = config.get("r", 8)
    return lora_tensors(modules or ["self_attn.q_proj"], rank=rank, head=row.get("head", PREFIX))


def config_bytes(row: dict[str, Any]) -> bytes:
    text: str = row["text"] if "text" in row else json.dumps(row["config"])
    return text.encode()


def ids(row: dict[str, Any]) -> str:
    return str(row["id"])


@pytest.mark.parametrize("row", [row for row in ROWS if "refused" in row], ids=ids)
def test_refused_for_the_stated_reason(read: ManifestReader, row: dict[str, Any]) -> None:
    with refused(row["refused"]):
        read(config_bytes(row), tensors_for(row))


@pytest.mark.parametrize("row", [row for row in ROWS if "scale" in row], ids=ids)
def test_accepted_at_the_stated_scale(read: ManifestReader, row: dict[str, Any]) -> None:
    tensors = tensors_for(row)
    manifest = read(config_bytes(row), tensors)
    assert len(manifest.modules) == len(tensors) // 2
    assert {module.scale for module in manifest.modules} == {row["scale"]}
    assert {module.rank for module in manifest.modules} == {row["config"]["r"]}
    assert warnings_of(manifest) == set(row["warnings"])


def test_the_generated_regex_is_checked_and_not_only_passed_over(read: ManifestReader) -> None:
    (row,) = [row for row in ROWS if row["id"] == "R28"]
    odd = lora_tensors(["mlp.up_proj"], rank=8, head=row["head"])
    with refused("tensor_unexpected"):
        read(config_bytes(row), tensors_for(row) | odd)


def test_each_row_is_either_accepted_or_refused() -> None:
    assert all(("refused" in row) != ("scale" in row) for row in ROWS)
