"""The identity of an adapter: a digest over its files' names, sizes and SHA-256.

Knows nothing of what the files mean. Invariant: the digest depends on the accepted files alone,
never on their order, on an adapter's name or on who owns it.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Protocol

CHUNK_BYTES = 1 << 20


class _Hash(Protocol):
    def update(self, data: bytes, /) -> None: ...


@dataclass(frozen=True, slots=True)
class FileDigest:
    """One accepted file: its name inside the adapter, its length, and its SHA-256 in hex."""

    name: str
    num_bytes: int
    sha256: str


def adapter_digest(files: Iterable[FileDigest]) -> str:
    """`sha256:<64 hex>` over `canonical_rows`."""
    return f"sha256:{hashlib.sha256(canonical_rows(files)).hexdigest()}"


def canonical_rows(files: Iterable[FileDigest]) -> bytes:
    """The canonical JSON of the sorted [name, bytes, sha256] rows: what a digest is over."""
    rows = sorted([file.name, file.num_bytes, file.sha256] for file in files)
    return json.dumps(rows, separators=(",", ":")).encode()


def hash_file(path: Path, name: str | None = None) -> FileDigest:
    """Read `path` once, in chunks. `name` is its name in the adapter (default: the path's)."""
    sha256 = hashlib.sha256()
    with path.open("rb") as source:
        num_bytes = _pump(source, sha256, None)
    return FileDigest(name or path.name, num_bytes, sha256.hexdigest())


def copy_and_hash(path: Path, target: Path, name: str | None = None) -> FileDigest:
    """Copy `path` to the new file `target` and hash it on the way.

    Raises:
        FileExistsError: `target` is already there.
    """
    sha256 = hashlib.sha256()
    with path.open("rb") as source, target.open("xb") as sink:
        num_bytes = _pump(source, sha256, sink)
    return FileDigest(name or target.name, num_bytes, sha256.hexdigest())


def _pump(source: IO[bytes], sha256: _Hash, sink: IO[bytes] | None) -> int:
    num_bytes = 0
    while chunk := source.read(CHUNK_BYTES):
        sha256.update(chunk)
        num_bytes += len(chunk)
        if sink is not None:
            sink.write(chunk)
    return num_bytes
