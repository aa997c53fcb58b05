"""Puts an upload's files together from their parts, and checks that they are what was declared.

Blocking. Knows nothing of requests or of SQL. Invariant: a file that is returned has the bytes and
the SHA-256 that were declared for it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from app.uploads.layout import DeclaredFile
from lora.digest import FileDigest, copy_and_hash
from lora.store import AdapterMissingError, AdapterStore
from lora.store_parts import PartStore

Received = Mapping[tuple[str, int], str]
"""(path, number) -> SHA-256 of the part in hex"""


class MissingPartsError(Exception):
    """`missing`: numbers by path; none where a file of another version was counted on."""

    def __init__(self, missing: Mapping[str, list[int]]) -> None:
        super().__init__(f"missing: {dict(missing)}")
        self.missing = missing


class WrongFilesError(Exception):
    """`files`: those that are complete, and not what was declared."""

    def __init__(self, files: Mapping[str, FileDigest]) -> None:
        super().__init__(f"wrong: {sorted(files)}")
        self.files = files


def missing_parts(files: Iterable[DeclaredFile], received: Received) -> dict[str, list[int]]:
    """Numbers of the parts that were not received, by path."""
    found = {
        file.path: [part.number for part in file.parts if (part.path, part.number) not in received]
        for file in files
    }
    return {path: numbers for path, numbers in found.items() if numbers}


def assemble(
    files: Iterable[DeclaredFile],
    received: Received,
    upload_id: str,
    parts: PartStore,
    store: AdapterStore,
    folder: Path,
) -> dict[str, FileDigest]:
    """Write the files to `folder`, which is empty; their digests by path.

    Raises MissingPartsError, WrongFilesError, StoreUnavailableError, OSError.
    """
    found: dict[str, FileDigest] = {}
    wrong: dict[str, FileDigest] = {}
    for file in files:
        target = folder / file.path
        if file.locator is None:
            digest = _join(file, received, upload_id, parts, target)
        else:
            digest = _copy(file, file.locator, store, target)
        is_right = (digest.num_bytes, digest.sha256) == (file.num_bytes, file.sha256)
        (found if is_right else wrong)[file.path] = digest
    if wrong:
        raise WrongFilesError(wrong)
    return found


def _join(
    file: DeclaredFile, received: Received, upload_id: str, parts: PartStore, target: Path
) -> FileDigest:
    sha256 = hashlib.sha256()
    num_bytes = 0
    with target.open("xb") as sink:
        for chunk in _chunks(file, received, upload_id, parts):
            sha256.update(chunk)
            sink.write(chunk)
            num_bytes += len(chunk)
    return FileDigest(file.path, num_bytes, sha256.hexdigest())


def _chunks(
    file: DeclaredFile, received: Received, upload_id: str, parts: PartStore
) -> Iterator[bytes]:
    for part in file.parts:
        part_sha256 = received[part.path, part.number]
        try:
            yield from parts.read(upload_id, part.path, part.number, part_sha256)
        except AdapterMissingError as error:
            raise MissingPartsError({file.path: [part.number]}) from error


def _copy(file: DeclaredFile, locator: str, store: AdapterStore, target: Path) -> FileDigest:
    try:
        return copy_and_hash(store.fetch(locator) / file.path, target)
    except (AdapterMissingError, FileNotFoundError) as error:
        raise MissingPartsError({file.path: []}) from error
