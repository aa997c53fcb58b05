"""Every kind of adapter that is not served is refused under its own code, whole and unread."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from lora.manifest import ManifestError
from tests.builders.adapters import ManifestReader, Tensors, lora_tensors, plain_config, zeros
from tests.builders.peft_models import make_adapter, make_tiny_llama
from tests.builders.refused_adapters import (
    OTHER_METHODS,
    OTHER_STARTS,
    OTHER_TASKS,
    REFUSED_FIELDS,
    REFUSED_TENSORS,
)
from tests.corpus.conftest import Verdict

CONFIGS: list[tuple[dict[str, Any], str]] = [
    *((changes, code) for changes, code, _ in REFUSED_FIELDS),
    *(({"peft_type": name}, "peft_type_unsupported") for name in OTHER_METHODS),
    *(({"task_type": name}, "task_type_unsupported") for name in OTHER_TASKS),
    *(({"init_lora_weights": name}, "init_mutates_base") for name in OTHER_STARTS),
]
# What PEFT saves itself, and what must not be served as it lies there.
TRAINED = {
    "pissa": ({"init_lora_weights": "pissa", "target_modules": ["q_proj"]}, "init_mutates_base"),
    "olora": ({"init_lora_weights": "olora", "target_modules": ["q_proj"]}, "init_mutates_base"),
    "whole linear": (
        {"target_modules": ["q_proj"], "modules_to_save": ["down_proj"]},
        "modules_to_save_unsupported",
    ),
    "replicated layers": (
        {"target_modules": ["q_proj"], "layer_replication": [[0, 2], [1, 3]]},
        "layer_replication_unsupported",
    ),
}


@pytest.fixture
def read(tmp_path: Path) -> ManifestReader:
    return ManifestReader(tmp_path)


def code_of(read: ManifestReader, config: dict[str, object] | bytes, tensors: Any) -> str | None:
    """None where the adapter is accepted."""
    try:
        read(config, tensors)
    except ManifestError as error:
        return error.code
    return None


@pytest.mark.parametrize(("changes", "code"), CONFIGS)
def test_a_configuration(
    read: ManifestReader, verdict: Verdict, changes: dict[str, Any], code: str
) -> None:
    found = code_of(read, plain_config(**changes), lora_tensors())
    verdict("refused as expected", found == code)
    assert found == code


@pytest.mark.parametrize(("name", "shape", "code"), REFUSED_TENSORS)
def test_a_tensor(
    read: ManifestReader, verdict: Verdict, name: str, shape: tuple[int, ...], code: str
) -> None:
    tensors: Tensors = {**lora_tensors(), name: zeros(shape)}
    found = code_of(read, plain_config(), tensors)
    verdict("refused as expected", found == code)
    assert found == code


@pytest.mark.parametrize("name", TRAINED)
@pytest.mark.filterwarnings("ignore")
def test_what_peft_saves(read: ManifestReader, verdict: Verdict, tmp_path: Path, name: str) -> None:
    fields, code = TRAINED[name]
    base = make_tiny_llama(tmp_path / "base")
    folder = make_adapter(base, tmp_path / "adapter", seed=1, r=4, **fields)
    weights = (folder / "adapter_model.safetensors").read_bytes()
    found = code_of(read, (folder / "adapter_config.json").read_bytes(), weights)
    verdict("refused as expected", found == code)
    assert found == code
