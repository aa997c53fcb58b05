"""An adapter's digest is a function of its files' names, sizes and bytes."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from lora.digest import FileDigest, adapter_digest, copy_and_hash, hash_file

CONFIG = FileDigest("adapter_config.json", 2, hashlib.sha256(b"{}").hexdigest())
WEIGHTS = FileDigest("adapter_model.safetensors", 3, hashlib.sha256(b"abc").hexdigest())


def test_digest_has_the_known_answer() -> None:
    canonical = (
        b'[["adapter_config.json",2,'
        b'"44136fa355b3678a1146ad16f7e8649e94fb4fc21fe77e8310c060f61caaff8a"],'
        b'["adapter_model.safetensors",3,'
        b'"ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"]]'
    )
    expected = "sha256:" + hashlib.sha256(canonical).hexdigest()
    assert adapter_digest([CONFIG, WEIGHTS]) == expected
    assert expected == "sha256:246f573f3a04193205334a45daff0992271b4bdd1e76d5d5bc2a0921a2281f21"


def test_digest_does_not_depend_on_order() -> None:
    assert adapter_digest([WEIGHTS, CONFIG]) == adapter_digest([CONFIG, WEIGHTS])


@pytest.mark.parametrize(
    "changed",
    [
        FileDigest("other", 3, WEIGHTS.sha256),
        FileDigest(WEIGHTS.name, 4, WEIGHTS.sha256),
        FileDigest(WEIGHTS.name, 3, CONFIG.sha256),
    ],
)
def test_digest_depends_on_name_size_and_bytes(changed: FileDigest) -> None:
    assert adapter_digest([CONFIG, changed]) != adapter_digest([CONFIG, WEIGHTS])


def test_hashing_a_file_gives_its_size_and_sha256(tmp_path: Path) -> None:
    path = tmp_path / "adapter_model.safetensors"
    path.write_bytes(b"abc")
    assert hash_file(path) == WEIGHTS
    assert hash_file(path, "x").name == "x"


def test_copying_hashes_what_it_wrote_and_never_overwrites(tmp_path: Path) -> None:
    source, target = tmp_path / "upload", tmp_path / "adapter_model.safetensors"
    source.write_bytes(b"abc")
    assert copy_and_hash(source, target) == WEIGHTS
    assert target.read_bytes() == b"abc"
    with pytest.raises(FileExistsError):
        copy_and_hash(source, target)
