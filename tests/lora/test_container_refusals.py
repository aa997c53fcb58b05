"""Files that are not safetensors are told by their bytes, and never opened."""

from __future__ import annotations

import gzip
import io
import pickle
import tarfile
import zipfile

import numpy as np
import pytest

from tests.builders.adapters import ManifestReader
from tests.builders.refusals import refused


class _Bomb:
    """Unpickling it would fail the test."""

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return (pytest.fail, ("it was unpickled",))


def _zip(name: str, content: bytes = b"{}") -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        archive.writestr(name, content)
    return buffer.getvalue()


def _tar() -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        link = tarfile.TarInfo("adapter_model.safetensors")
        link.type, link.linkname = tarfile.SYMTYPE, "/etc/passwd"
        archive.addfile(link)
    return buffer.getvalue()


def _npz() -> bytes:
    buffer = io.BytesIO()
    np.savez(buffer, a=np.zeros(4))
    return buffer.getvalue()


def _npy() -> bytes:
    buffer = io.BytesIO()
    np.save(buffer, np.zeros(4))
    return buffer.getvalue()


LFS_POINTER = b"version https://git-lfs.github.com/spec/v1\noid sha256:" + b"0" * 64 + b"\nsize 9\n"


@pytest.mark.parametrize(
    ("content", "code"),
    [
        pytest.param(_zip("archive/data.pkl"), "pickle_not_allowed", id="torch zip"),
        pytest.param(pickle.dumps(_Bomb(), 2), "pickle_not_allowed", id="pickle 2"),
        pytest.param(pickle.dumps(_Bomb(), 4), "pickle_not_allowed", id="pickle 4"),
        pytest.param(pickle.dumps(_Bomb(), 0), "pickle_not_allowed", id="text pickle"),
        pytest.param(_zip("checkpoint/adapter_config.json"), "archive_not_supported", id="zip"),
        pytest.param(_tar(), "archive_not_supported", id="tar"),
        pytest.param(gzip.compress(_tar()), "archive_not_supported", id="tar.gz"),
        pytest.param(b"7z\xbc\xaf\x27\x1c" + bytes(30), "archive_not_supported", id="7z"),
        pytest.param(_npz(), "format_unsupported", id="npz"),
        pytest.param(_npy(), "format_unsupported", id="npy"),
        pytest.param(b"\x89HDF\r\n\x1a\n" + bytes(30), "format_unsupported", id="hdf5"),
        pytest.param(b"GGUF\x03\0\0\0" + bytes(30), "format_gguf_unsupported", id="gguf"),
        pytest.param(LFS_POINTER, "format_lfs_pointer", id="git-lfs"),
    ],
)
def test_another_format_is_named(read: ManifestReader, content: bytes, code: str) -> None:
    with refused(code) as refusal:
        read(tensors=content)
    assert refusal.codes == {code}


def test_a_configuration_that_is_a_git_lfs_pointer_is_named(read: ManifestReader) -> None:
    with refused("format_lfs_pointer"):
        read(LFS_POINTER)


def test_a_header_whose_length_looks_like_a_pickle_is_still_safetensors(
    read: ManifestReader,
) -> None:
    # 0x0280 = 640 bytes of header: the file begins as a pickle of protocol 2 does.
    header = b'{"x":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}}'.ljust(0x280)
    with refused("tensor_unexpected"):
        read(tensors=len(header).to_bytes(8, "little") + header + bytes(4))
