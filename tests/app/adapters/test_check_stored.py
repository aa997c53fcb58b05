"""What the worker finds in an adapter's bytes, with the base's own numbers at hand or without."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from app.adapters.manifest_summary import summarise
from app.adapters.verification import check_stored
from app.worker import find_base_files
from lora.base_files import SINGLE_FILE
from lora.store import LocalAdapterStore
from tests.builders.adapters import (
    HEAD,
    TINY_BASE,
    ManifestReader,
    lora_tensors,
    plain_config,
    safetensors_bytes,
    stored,
    write_adapter,
    zeros,
)

EMBEDDING = np.random.default_rng(1).standard_normal((128, 64), dtype=np.float32)
COPY = f"{HEAD}embed_tokens.weight"


@pytest.mark.parametrize(
    ("difference", "has_weights", "codes"),
    [
        (0.0, True, []),
        (0.5, True, [("base_model_mismatch", "error")]),
        (0.5, False, []),
    ],
)
def test_a_copy_of_the_base_is_compared_where_the_bases_weights_are(
    tmp_path: Path, difference: float, has_weights: bool, codes: list[tuple[str, str]]
) -> None:
    model = tmp_path / "model"
    model.mkdir()
    if has_weights:
        tensors = {"model.embed_tokens.weight": stored(EMBEDDING)}
        (model / SINGLE_FILE).write_bytes(safetensors_bytes(tensors))
    copy = {COPY: stored(EMBEDDING + difference)}
    files, digest = write_adapter(tmp_path / "adapter", lora_tensors() | copy)
    store = LocalAdapterStore(tmp_path / "store")
    locator = store.put("ten_a", digest, files)
    found = check_stored(store, TINY_BASE, find_base_files(model, TINY_BASE), locator, digest)
    assert [(each.code, each.severity) for each in found] == codes


def test_what_is_remembered_names_what_replaces_the_base(tmp_path: Path) -> None:
    read = ManifestReader(tmp_path)
    assert summarise(read()) == {
        "format": 2,
        "modules": ["self_attn.q_proj", "self_attn.v_proj"],
        "num_layers": 3,
        "overrides": [],
        "override_bytes": 0,
        "max_rank": 8,
        "num_params": 3 * 8 * (64 + 64 + 64 + 32),
        "base_name": "tenfold/tiny",
    }
    config = plain_config(
        modules_to_save=["embed_tokens"], target_modules=["q_proj", "v_proj", "lm_head"]
    )
    tensors = lora_tensors(["self_attn.q_proj", "self_attn.v_proj", "lm_head"])
    summary = summarise(read(config, tensors | {COPY: zeros((128, 64))}))
    assert summary["modules"] == ["self_attn.q_proj", "self_attn.v_proj", "lm_head"]
    assert (summary["num_layers"], summary["overrides"]) == (3, ["embed_tokens.weight"])
    assert summary["override_bytes"] == 128 * 64 * 4
