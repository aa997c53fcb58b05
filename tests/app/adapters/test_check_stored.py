"""What the worker finds in an adapter's bytes, with the base's own numbers at hand or without."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from app.adapters.manifest_summary import summarise
from app.adapters.structure_check import check_folder
from app.adapters.validator import Validator
from app.adapters.verification import Verifier
from app.errors import ApiError
from app.worker import find_base_weights
from lora.base_files import SINGLE_FILE
from lora.digest import hash_file
from lora.manifest import DEFAULT_LIMITS
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
async def test_a_copy_of_the_base_is_compared_where_the_bases_weights_are(
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
    weights = find_base_weights(model, TINY_BASE)
    verifier = Verifier(Validator(), store, TINY_BASE, weights)
    found = await verifier.check_stored(locator, digest)
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


async def test_whole_modules_that_are_not_allowed_are_refused_with_their_bytes(
    tmp_path: Path,
) -> None:
    config = plain_config(modules_to_save=["embed_tokens"])
    files, _ = write_adapter(tmp_path, lora_tensors() | {COPY: zeros((128, 64))}, config)
    received = {name: hash_file(path) for name, path in files.items()}
    allowed = replace(DEFAULT_LIMITS, max_override_bytes=128 * 64 * 4)
    checked = await check_folder(Validator(), tmp_path, received, TINY_BASE, allowed)
    assert checked.summary["override_bytes"] == 32768
    with pytest.raises(ApiError) as caught:
        limits = replace(allowed, max_override_bytes=32767)
        await check_folder(Validator(), tmp_path, received, TINY_BASE, limits)
    assert (caught.value.code, caught.value.status) == ("modules_to_save_not_allowed", 422)
