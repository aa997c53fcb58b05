"""What an adapter says of the base's own numbers is compared with the base's files."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from lora.base_copies import check_against_base
from lora.base_files import SINGLE_FILE, BaseFiles
from lora.base_spec import UnsupportedBaseError
from tests.builders.adapters import (
    HEAD,
    TINY_BASE,
    ManifestReader,
    Tensors,
    lora_tensors,
    plain_config,
    safetensors_bytes,
    stored,
)

EMBEDDING = np.random.default_rng(1).standard_normal((128, 64), dtype=np.float32)
NORM = np.linspace(0.5, 1.5, 64, dtype=np.float32)
COPY = f"{HEAD}embed_tokens.weight"


def base_files(folder: Path, dtype: str = "F32", norm: np.ndarray = NORM) -> BaseFiles:
    tensors = {
        "model.embed_tokens.weight": stored(EMBEDDING, dtype),
        "model.norm.weight": stored(norm, dtype),
    }
    (folder / SINGLE_FILE).write_bytes(safetensors_bytes(tensors))
    return BaseFiles.from_folder(folder, TINY_BASE)


def codes(read: ManifestReader, tensors: Tensors, base: BaseFiles, **changes: object) -> list[str]:
    manifest = read(plain_config(**changes), lora_tensors() | tensors)
    return [found.code for found in check_against_base(read.weights, manifest, base)]


@pytest.mark.parametrize("of_base", ["F32", "F16", "BF16"])
@pytest.mark.parametrize("of_file", ["F32", "F16", "BF16"])
def test_a_copy_may_be_stored_in_another_type(
    read: ManifestReader, tmp_path: Path, of_base: str, of_file: str
) -> None:
    base = base_files(tmp_path, of_base)
    assert codes(read, {COPY: stored(EMBEDDING, of_file)}, base) == []


@pytest.mark.parametrize("dtype", ["F32", "BF16"])
@pytest.mark.parametrize("place", [(0, 0), (127, 63), (60, 3)])
def test_one_number_that_differs_is_another_base(
    read: ManifestReader, tmp_path: Path, dtype: str, place: tuple[int, int]
) -> None:
    other = EMBEDDING.copy()
    other[place] = other[place] * 1.02 + 0.01
    base = base_files(tmp_path, dtype)
    assert codes(read, {COPY: stored(other, dtype)}, base) == ["base_model_mismatch"]
    head = {f"{HEAD.removesuffix('model.')}lm_head.weight": stored(other, dtype)}
    assert codes(read, head, base) == ["base_model_mismatch"], "a tied head is the embedding"


def test_it_is_found_beyond_the_first_chunk(
    read: ManifestReader, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lora.base_copies._CHUNK_ELEMENTS", 100)
    other = EMBEDDING.copy()
    other[-1, -1] += 1
    base = base_files(tmp_path)
    assert codes(read, {COPY: stored(other)}, base) == ["base_model_mismatch"]
    assert codes(read, {COPY: stored(EMBEDDING)}, base) == []


def test_what_replaces_the_base_is_not_compared(read: ManifestReader, tmp_path: Path) -> None:
    base = base_files(tmp_path)
    other = {COPY: stored(EMBEDDING + 1)}
    assert codes(read, other, base, modules_to_save=["embed_tokens"]) == []


def test_a_norm_that_the_bases_cannot_be_turned_into(read: ManifestReader, tmp_path: Path) -> None:
    with_zero = NORM.copy()
    with_zero[5] = 0
    own = {f"{HEAD}norm.weight": stored(NORM)}
    config = {"modules_to_save": ["model.norm"]}
    assert codes(read, own, base_files(tmp_path), **config) == []
    base = base_files(tmp_path, norm=with_zero)
    assert codes(read, own, base, **config) == ["modules_to_save_unsupported"]
    own = {f"{HEAD}norm.weight": stored(with_zero)}
    assert codes(read, own, base, **config) == []


def test_a_base_whose_files_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedBaseError):
        BaseFiles.from_folder(tmp_path, TINY_BASE)
    (tmp_path / SINGLE_FILE).write_bytes(b"\x10")
    with pytest.raises(UnsupportedBaseError):
        BaseFiles.from_folder(tmp_path, TINY_BASE)
