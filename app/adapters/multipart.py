"""Reads an upload's `multipart/form-data` as it arrives: to disk, hashing on the way.

Blocking: feed it from a thread. Knows nothing of what the files mean. Invariants: memory holds one
chunk, whatever is sent; the first reason to refuse is kept while the rest of the body is read past,
so that the client hears it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import IO

from app.adapters.unexpected_files import refuse_unexpected
from app.errors import ApiError, BadRequestError, PayloadTooLargeError
from app.form_reader import FormReader
from lora.container import HEAD_BYTES
from lora.digest import FileDigest

MAX_PARTS = 16


class MultipartReceiver:
    """`feed` the body's chunks, then `finish`.

    `max_bytes` maps the name of each accepted file to its limit; a part is known by its field
    name, or else by its file name. Files are written to `folder` under their accepted names.
    """

    def __init__(
        self, content_type: str | None, folder: Path, max_bytes: Mapping[str, int]
    ) -> None:
        self._folder = folder
        self._max_bytes = max_bytes
        self._opened: set[str] = set()
        self._digests: dict[str, FileDigest] = {}
        self._refusal: ApiError | None = None
        self._part: _Part | None = None
        self._reader = FormReader(content_type, self, max_parts=MAX_PARTS)

    def feed(self, chunk: bytes) -> None:
        """Raises BadRequestError where the body is not multipart."""
        self._reader.feed(chunk)

    def finish(self) -> dict[str, FileDigest]:
        """What was received, by name. Raises the first reason to refuse, if there was one."""
        if self._refusal is not None:
            raise self._refusal
        self._reader.finish()
        return self._digests

    def close(self) -> None:
        """Let go of a file that was still being written."""
        if self._part is not None:
            self._part.close()

    def open_part(self, field: str, filename: str) -> None:
        name = next((name for name in (field, filename) if name in self._max_bytes), None)
        if name is None:
            self._part = _Part(filename or field, None, HEAD_BYTES)
        elif name in self._opened:
            self._refuse(
                BadRequestError(f"'{name}' was sent twice.", code="invalid_value", param=name)
            )
            self._part = _Part(name, None, self._max_bytes[name])
        else:
            self._opened.add(name)
            # "x": the folder is this upload's own, so the file cannot be there.
            self._part = _Part(name, (self._folder / name).open("xb"), self._max_bytes[name])

    def take(self, data: bytes) -> None:
        assert self._part is not None
        if not self._part.write(data):
            self._refuse(
                PayloadTooLargeError(
                    f"'{self._part.name}' exceeds the limit of {self._part.max_bytes} bytes.",
                    code="file_too_large",
                    param=self._part.name,
                )
            )

    def end_part(self) -> None:
        part, self._part = self._part, None
        assert part is not None
        part.close()
        if part.is_stored:
            self._digests[part.name] = part.digest()
        elif part.name not in self._max_bytes:
            self._refuse(refuse_unexpected(part.name, part.head))

    def _refuse(self, error: ApiError) -> None:
        self._refusal = self._refusal or error


class _Part:
    """One part: stored and hashed where it has a file, else only its first bytes are kept."""

    def __init__(self, name: str, file: IO[bytes] | None, max_bytes: int) -> None:
        self.name = name
        self.max_bytes = max_bytes
        self.head = b""
        self._file = file
        self._num_bytes = 0
        self._sha256 = hashlib.sha256()

    @property
    def is_stored(self) -> bool:
        return self._file is not None and self._num_bytes <= self.max_bytes

    def write(self, data: bytes) -> bool:
        """False where a stored file outgrows its limit."""
        if self._file is None:
            self.head = (self.head + data[:HEAD_BYTES])[:HEAD_BYTES]
            return True
        self._num_bytes += len(data)
        if self._num_bytes > self.max_bytes:
            return False
        self._sha256.update(data)
        self._file.write(data)
        return True

    def digest(self) -> FileDigest:
        return FileDigest(self.name, self._num_bytes, self._sha256.hexdigest())

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
