"""What a file is by its first bytes, when it is not safetensors: pickle, archive, GGUF, pointer.

Nothing is opened, unpacked or unpickled. Invariant: only bytes are judged, never a file's name.
"""

from __future__ import annotations

import re

HEAD_BYTES = 4096
_LENGTH_BYTES = 8

_LFS_POINTER = b"version https://git-lfs.github.com/spec/"
# The text protocol of pickle: a global opcode, `c<module>\n<name>\n`, perhaps after a mark.
_TEXT_PICKLE = re.compile(rb"\(?c[A-Za-z_][\w.]*\n[A-Za-z_][\w.]*\n|\(d[pq]\d")
_ARCHIVES = {
    b"PK\x03\x04": "zip",
    b"PK\x05\x06": "zip",
    b"\x1f\x8b": "gzip",
    b"7z\xbc\xaf\x27\x1c": "7z",
    b"BZh": "bzip2",
    b"\xfd7zXZ\x00": "xz",
    b"\x28\xb5\x2f\xfd": "zstd",
    b"Rar!\x1a\x07": "rar",
}
_FORMATS = {b"\x93NUMPY": "NumPy", b"\x89HDF\r\n\x1a\n": "HDF5"}


def sniff(head: bytes) -> tuple[str, str] | None:
    """The refusal code and the format's name for a file that starts with `head`, else None.

    `head` is up to HEAD_BYTES of the file. A file that may be safetensors is None.
    """
    if _may_be_safetensors(head):
        return None
    if is_lfs_pointer(head):
        return "format_lfs_pointer", "git-lfs pointer"
    if head.startswith(b"GGUF"):
        return "format_gguf_unsupported", "GGUF"
    if head.startswith(b"PK\x03\x04") and (b".pkl" in head or b"/byteorder" in head):
        return "pickle_not_allowed", "PyTorch zip"
    if head.startswith(b"PK\x03\x04") and b".npy" in head[:512]:
        return "format_unsupported", "NumPy npz"
    if (head[:1] == b"\x80" and head[1:2] in b"\x02\x03\x04\x05") or _TEXT_PICKLE.match(head):
        return "pickle_not_allowed", "pickle"
    if head[257:262] == b"ustar":
        return "archive_not_supported", "tar"
    for magic, name in _ARCHIVES.items():
        if head.startswith(magic):
            return "archive_not_supported", name
    for magic, name in _FORMATS.items():
        if head.startswith(magic):
            return "format_unsupported", name
    return None


def is_lfs_pointer(head: bytes) -> bool:
    """Whether this is the text that git leaves in place of a large file it did not fetch."""
    return head.startswith(_LFS_POINTER)


def _may_be_safetensors(head: bytes) -> bool:
    # A header length below 2^40, then JSON: no magic above looks like that.
    return head[5:_LENGTH_BYTES] == b"\0\0\0" and head[_LENGTH_BYTES : _LENGTH_BYTES + 1] == b"{"
