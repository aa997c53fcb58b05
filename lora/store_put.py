"""Puts a file into an object store, and holds no more of it in memory than a part.

Knows nothing of what is put. Blocking. Invariant: however long the file is, `put_file` holds one
part that is being sent, and a chunk of the next: many uploads at once are many such parts.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import obstore

from lora.digest import CHUNK_BYTES

if TYPE_CHECKING:  # the library has this name for type checkers only
    from obstore.store import ObjectStore

PART_BYTES = 5 << 20
"""Of a multipart upload: S3 takes no less, but for the last."""


def put_file(objects: ObjectStore, key: str, path: Path) -> None:
    """Raises obstore's errors, and OSError."""
    if path.stat().st_size <= PART_BYTES:
        obstore.put(objects, key, path.read_bytes())
        return
    obstore.put(objects, key, _chunks(path), chunk_size=PART_BYTES, max_concurrency=1)


def _chunks(path: Path) -> Iterator[bytes]:
    with path.open("rb") as source:
        while chunk := source.read(CHUNK_BYTES):
            yield chunk
