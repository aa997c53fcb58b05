"""Parts of uploads that are not complete yet, where every API process and worker can reach them.

    <upload id>/<file>/<number>-<sha256>

Knows nothing of who uploads or of what the parts make. Blocking. Invariants: a part is there whole
or not at all, and is never replaced by other bytes: its name holds its digest; no name comes from
a client but one of `ADAPTER_FILES`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

import obstore
from obstore.exceptions import BaseError

from lora.digest import CHUNK_BYTES
from lora.store import ADAPTER_FILES, AdapterMissingError, StoreUnavailableError
from lora.store_put import put_file

if TYPE_CHECKING:  # the library has this name for type checkers only
    from obstore.store import ObjectStore

_UPLOAD_ID = re.compile(r"[a-z]{3}_[0-9a-z]{26}")
_SHA256 = re.compile(r"[0-9a-f]{64}")


class PartStore:
    def __init__(self, open_objects: Callable[[], ObjectStore]) -> None:
        self._open_objects = open_objects

    @cached_property
    def _objects(self) -> ObjectStore:
        """Opened when it is first wanted: whoever sends no parts needs no place for them."""
        return self._open_objects()

    def put(self, upload_id: str, file: str, number: int, sha256: str, path: Path) -> None:
        """Keep the bytes at `path`. Raises StoreUnavailableError."""
        try:
            put_file(self._objects, _key(upload_id, file, number, sha256), path)
        except (BaseError, OSError) as error:
            raise _unavailable(error) from error

    def read(self, upload_id: str, file: str, number: int, sha256: str) -> Iterator[bytes]:
        """A part's bytes in chunks. Raises AdapterMissingError, StoreUnavailableError."""
        key = _key(upload_id, file, number, sha256)
        try:
            for chunk in obstore.get(self._objects, key).stream(min_chunk_size=CHUNK_BYTES):
                yield bytes(chunk)
        except FileNotFoundError as error:
            raise AdapterMissingError(f"no part at {key}") from error
        except (BaseError, OSError) as error:
            raise _unavailable(error) from error

    def delete(self, upload_id: str, file: str, number: int, sha256: str) -> None:
        """Forget one part; nothing happens where it is not there."""
        self._delete([_key(upload_id, file, number, sha256)])

    def delete_all(self, upload_id: str) -> None:
        """Forget all parts of an upload, those too that came while it ended."""
        if _UPLOAD_ID.fullmatch(upload_id) is None:
            raise ValueError("not an upload's id")
        try:
            found = [
                meta["path"]
                for metas in obstore.list(self._objects, f"{upload_id}/")
                for meta in metas
            ]
        except FileNotFoundError:
            return
        except (BaseError, OSError) as error:
            raise _unavailable(error) from error
        self._delete(found)

    def _delete(self, keys: list[str]) -> None:
        for key in keys:
            try:
                obstore.delete(self._objects, key)
            except FileNotFoundError:
                continue
            except (BaseError, OSError) as error:
                raise _unavailable(error) from error


def _key(upload_id: str, file: str, number: int, sha256: str) -> str:
    if (
        _UPLOAD_ID.fullmatch(upload_id) is None
        or file not in ADAPTER_FILES
        or _SHA256.fullmatch(sha256) is None
        or number < 1
    ):
        raise ValueError("not a part of an upload")
    return f"{upload_id}/{file}/{number}-{sha256}"


def _unavailable(error: Exception) -> StoreUnavailableError:
    return StoreUnavailableError(f"parts: {type(error).__name__}")
