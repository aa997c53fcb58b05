"""An `AdapterStore` in a bucket: S3, Google Cloud Storage, Azure, or what speaks as one of them.

    <prefix>/<tenant_id>/<digest hex>/<file>
    <prefix>/<tenant_id>/<digest hex>/index.json    the rows that the digest is over, written last

Knows nothing of what an adapter contains. Invariants: the index's own SHA-256 *is* the digest, so
that whoever changes one byte of it, or of a file that it names, is found out on the next download;
an adapter without its index is not there, so that half an adapter never is; what is deleted from
the bucket is served from no local copy while the bucket can be asked.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING

import obstore
from obstore.exceptions import BaseError
from obstore.store import AzureStore, GCSStore, S3Store

from lora.digest import CHUNK_BYTES, FileDigest, adapter_digest, canonical_rows, hash_file
from lora.store import (
    ADAPTER_FILES,
    AdapterCorruptError,
    AdapterMissingError,
    StoreUnavailableError,
    check_files,
    locator_of,
    split_locator,
)
from lora.store_cache import StoreCache
from lora.store_put import put_file

if TYPE_CHECKING:  # the library has this name for type checkers only
    from obstore.store import ObjectStore

INDEX_FILE = "index.json"


class ObjectAdapterStore:
    """Downloads are kept in `cache`; whoever loads one checks it, and asks for it `anew`."""

    def __init__(self, objects: ObjectStore, cache: StoreCache) -> None:
        self._objects = objects
        self._cache = cache

    def put(self, tenant_id: str, digest: str, files: Mapping[str, Path]) -> str:
        """Writes all objects anew, which repairs what was damaged; readers see the same bytes."""
        locator = locator_of(tenant_id, digest)
        check_files(files)
        rows = [hash_file(path, name) for name, path in files.items()]
        if (found := adapter_digest(rows)) != digest:
            raise AdapterCorruptError(f"files of {digest} hash to {found}")
        with _store_errors():
            for name, path in files.items():
                put_file(self._objects, f"{locator}/{name}", path)
            obstore.put(self._objects, f"{locator}/{INDEX_FILE}", canonical_rows(rows))
        return locator

    def fetch(self, locator: str, *, anew: bool = False) -> Path:
        split_locator(locator)
        kept = None if anew else self._cache.find(locator)
        try:
            index = self._read_index(locator)
        except AdapterMissingError:
            self._cache.drop(locator)
            raise
        except StoreUnavailableError:
            if kept is None:
                raise
            return kept  # whoever loads it checks its digest all the same
        return kept or self._download(locator, index)

    def read(self, locator: str, name: str) -> bytes:
        split_locator(locator)
        with _store_errors():
            try:
                return bytes(obstore.get(self._objects, f"{locator}/{name}").bytes())
            except FileNotFoundError as error:
                raise AdapterMissingError(f"no {name} at {locator}") from error

    def read_range(self, locator: str, name: str, start: int, num_bytes: int) -> bytes:
        split_locator(locator)
        path = f"{locator}/{name}"
        with _store_errors():
            try:
                piece = obstore.get_range(self._objects, path, start=start, length=num_bytes)
            except FileNotFoundError as error:
                raise AdapterMissingError(f"no {name} at {locator}") from error
        return bytes(piece)

    def sign(self, locator: str, name: str, lifetime: timedelta) -> str | None:
        split_locator(locator)
        if not isinstance(self._objects, S3Store | GCSStore | AzureStore):
            return None
        with _store_errors():
            return obstore.sign(self._objects, "GET", f"{locator}/{name}", lifetime)

    def contains(self, locator: str) -> bool:
        split_locator(locator)
        try:
            rows = read_index(self._read_index(locator), locator)
        except (AdapterMissingError, AdapterCorruptError):
            return False
        return all(self._has(locator, row) for row in rows)

    def delete(self, locator: str) -> None:
        """The index first: from then on the adapter is not there."""
        split_locator(locator)
        with _store_errors():
            for name in (INDEX_FILE, *sorted(ADAPTER_FILES)):
                with suppress(FileNotFoundError):
                    obstore.delete(self._objects, f"{locator}/{name}")
        self._cache.drop(locator)

    def _has(self, locator: str, row: FileDigest) -> bool:
        with _store_errors():
            try:
                found = obstore.head(self._objects, f"{locator}/{row.name}")
            except FileNotFoundError:
                return False
        return found["size"] == row.num_bytes

    def _read_index(self, locator: str) -> bytes:
        with _store_errors():
            try:
                return bytes(obstore.get(self._objects, f"{locator}/{INDEX_FILE}").bytes())
            except FileNotFoundError as error:
                raise AdapterMissingError(f"no adapter at {locator}") from error

    def _download(self, locator: str, index: bytes) -> Path:
        rows = read_index(index, locator)
        with _store_errors(), self._cache.staging() as folder:
            for row in rows:
                self._download_file(locator, row, folder / row.name)
            return self._cache.keep(locator, folder)

    def _download_file(self, locator: str, row: FileDigest, target: Path) -> None:
        sha256 = hashlib.sha256()
        num_bytes = 0
        try:
            found = obstore.get(self._objects, f"{locator}/{row.name}")
        except FileNotFoundError as error:
            raise AdapterMissingError(f"{row.name} of {locator} is gone") from error
        with target.open("xb") as sink:
            for chunk in found.stream(min_chunk_size=CHUNK_BYTES):
                num_bytes += len(chunk)
                if num_bytes > row.num_bytes:
                    break  # a bucket's object may have grown, and our disk has an end
                sha256.update(chunk)
                sink.write(chunk)
        if (num_bytes, sha256.hexdigest()) != (row.num_bytes, row.sha256):
            raise AdapterCorruptError(f"{row.name} of {locator} is not what was put there")


def read_index(index: bytes, locator: str) -> list[FileDigest]:
    """The files of the adapter at `locator`. Raises AdapterCorruptError."""
    _, digest_hex = split_locator(locator)
    if hashlib.sha256(index).hexdigest() != digest_hex:
        raise AdapterCorruptError(f"the index of {locator} is damaged")
    rows = [FileDigest(*row) for row in json.loads(index)]
    check_files({row.name: Path() for row in rows})
    return rows


@contextmanager
def _store_errors() -> Iterator[None]:
    """What the bucket's client says, and our own disk, as an error of the store."""
    try:
        yield
    except BaseError as error:
        raise StoreUnavailableError(f"object store: {type(error).__name__}") from error
    except OSError as error:
        raise StoreUnavailableError(f"object store: {error.strerror or error}") from error
