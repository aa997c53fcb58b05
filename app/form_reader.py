"""Reads `multipart/form-data` as it arrives, part by part.

Blocking: feed it from a thread. Knows nothing of what parts mean. Invariants: memory holds what was
fed last and one header of bounded length; a client's file name never becomes a path.
"""

from __future__ import annotations

from typing import Protocol

from python_multipart.exceptions import FormParserError
from python_multipart.multipart import MultipartParser, parse_options_header

from app.errors import BadRequestError, UnsupportedMediaTypeError

MAX_HEADER_BYTES = 4096
"""Of one header line of a part."""


class Parts(Protocol):
    """Who takes the parts, one after the other; each method may raise an ApiError."""

    def open_part(self, field: str, filename: str) -> None:
        """A part begins. `filename` is without a folder, and empty where there is none."""

    def take(self, data: bytes) -> None:
        """More of the part that is open."""

    def end_part(self) -> None:
        """All of it came."""


class FormReader:
    """`feed` the body's chunks, then `finish`."""

    def __init__(self, content_type: str | None, parts: Parts, *, max_parts: int) -> None:
        """Raises UnsupportedMediaTypeError."""
        self._parts = parts
        self._max_parts = max_parts
        self._num_parts = 0
        self._is_complete = False
        self._header_name = bytearray()
        self._header_value = bytearray()
        self._disposition = ""
        self._parser = MultipartParser(
            _boundary(content_type),
            {
                "on_part_begin": self._begin_part,
                "on_header_field": lambda *piece: self._extend(self._header_name, *piece),
                "on_header_value": lambda *piece: self._extend(self._header_value, *piece),
                "on_header_end": self._end_header,
                "on_headers_finished": self._open_part,
                "on_part_data": lambda data, start, end: parts.take(data[start:end]),
                "on_part_end": parts.end_part,
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

    def finish(self) -> None:
        """Raises BadRequestError where the body was cut short."""
        if not self._is_complete:
            raise BadRequestError(
                "The multipart body ends before its closing boundary.", code="length_mismatch"
            )

    def _begin_part(self) -> None:
        self._disposition = ""
        self._num_parts += 1
        if self._num_parts > self._max_parts:
            raise BadRequestError("The upload has too many parts.", code="multipart_invalid")

    def _extend(self, header: bytearray, data: bytes, start: int, end: int) -> None:
        header += data[start:end]
        if len(header) > MAX_HEADER_BYTES:
            raise BadRequestError("A part's header is too long.", code="multipart_invalid")

    def _end_header(self) -> None:
        if self._header_name.lower() == b"content-disposition":
            self._disposition = self._header_value.decode("latin-1")
        self._header_name.clear()
        self._header_value.clear()

    def _open_part(self) -> None:
        _, options = parse_options_header(self._disposition)
        field = options.get(b"name", b"").decode("utf-8", "replace")
        filename = options.get(b"filename", b"").decode("utf-8", "replace")
        self._parts.open_part(field, filename.replace("\\", "/").rpartition("/")[2])

    def _end(self) -> None:
        self._is_complete = True


def _boundary(content_type: str | None) -> bytes:
    kind, options = parse_options_header(content_type)
    boundary = options.get(b"boundary", b"")
    if kind != b"multipart/form-data" or not 1 <= len(boundary) <= 70:
        raise UnsupportedMediaTypeError(
            "An upload is multipart/form-data with a boundary.", code="multipart_required"
        )
    return boundary
