"""Reads an upload's `multipart/form-data` as it arrives: to disk, hashing on the way.

Blocking: feed it from a thread. Knows nothing of what the files mean. Invariants: memory holds one
chunk, whatever is sent; a client's file name never becomes a path; the first reason to refuse is
kept while the rest of the body is read past, so that the client hears it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import IO

from python_multipart.exceptions import FormParserError
from python_multipart.multipart import MultipartParser, parse_options_header

from app.adapters.unexpected_files import refuse_unexpected
from app.errors import ApiError, BadRequestError, PayloadTooLargeError, UnsupportedMediaTypeError
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
        self._num_parts = 0
        self._is_complete = False
        self._header = (b"", b"")
        self._disposition = ""
        self._parser = MultipartParser(
            _boundary(content_type),
            {
                "on_part_begin": self._begin_part,
                "on_header_field": self._extend_header_name,
                "on_header_value": self._extend_header_value,
                "on_header_end": self._end_header,
                "on_headers_finished": self._open_part,
                "on_part_data": self._write,
                "on_part_end": self._end_part,
                "on_end": self._end,
            },
        )

    def feed(self, chunk: bytes) -> None:
        """Raises BadRequestError where the body is not multipart."""
        try:
            self._parser.write(chunk)
        except FormParserError as error:
            raise BadRequestError(
                "The body is not valid multipart/form-data.", code="multipart_invalid"
            ) from error

    def finish(self) -> dict[str, FileDigest]:
        """What was received, by name. Raises the first reason to refuse, if there was one."""
        if self._refusal is not None:
            raise self._refusal
        if not self._is_complete:
            raise BadRequestError(
                "The multipart body ends before its closing boundary.", code="length_mismatch"
            )
        return self._digests

    def close(self) -> None:
        """Let go of a file that was still being written."""
        if self._part is not None:
            self._part.close()

    def _begin_part(self) -> None:
        self._disposition = ""
        self._header = (b"", b"")
        self._num_parts += 1
        if self._num_parts > MAX_PARTS:
            raise BadRequestError("The upload has too many parts.", code="multipart_invalid")

    def _extend_header_name(self, data: bytes, start: int, end: int) -> None:
        self._header = (self._header[0] + data[start:end], self._header[1])

    def _extend_header_value(self, data: bytes, start: int, end: int) -> None:
        self._header = (self._header[0], self._header[1] + data[start:end])

    def _end_header(self) -> None:
        name, value = self._header
        self._header = (b"", b"")
        if name.lower() == b"content-disposition":
            self._disposition = value.decode("latin-1")

    def _open_part(self) -> None:
        field, filename = _names(self._disposition)
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

    def _write(self, data: bytes, start: int, end: int) -> None:
        assert self._part is not None
        if not self._part.write(data[start:end]):
            self._refuse(
                PayloadTooLargeError(
                    f"'{self._part.name}' exceeds the limit of {self._part.max_bytes} bytes.",
                    code="file_too_large",
                    param=self._part.name,
                )
            )

    def _end_part(self) -> None:
        part, self._part = self._part, None
        assert part is not None
        part.close()
        if part.is_stored:
            self._digests[part.name] = part.digest()
        elif part.name not in self._max_bytes:
            self._refuse(refuse_unexpected(part.name, part.head))

    def _end(self) -> None:
        self._is_complete = True

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


def _boundary(content_type: str | None) -> bytes:
    kind, options = parse_options_header(content_type)
    boundary = options.get(b"boundary", b"")
    if kind != b"multipart/form-data" or not 1 <= len(boundary) <= 70:
        raise UnsupportedMediaTypeError(
            "An upload is multipart/form-data with a boundary.", code="multipart_required"
        )
    return boundary


def _names(disposition: str) -> tuple[str, str]:
    """The field's name and the file's name; a folder in front of the latter is dropped."""
    _, options = parse_options_header(disposition)
    field = options.get(b"name", b"").decode("utf-8", "replace")
    filename = options.get(b"filename", b"").decode("utf-8", "replace")
    return field, filename.replace("\\", "/").rpartition("/")[2]
