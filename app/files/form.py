"""Reads a file's upload, `multipart/form-data`, as it arrives: the file piece by piece, and fields.

Blocking: feed it from a thread. Knows nothing of what is done with the bytes. Invariants: memory
holds what was fed and the few short fields; a client's file name never becomes a path; a field that
nobody documents is refused by name.
"""

from __future__ import annotations

from python_multipart.exceptions import FormParserError
from python_multipart.multipart import MultipartParser, parse_options_header

from app.errors import BadRequestError, UnsupportedMediaTypeError, shorten

FIELDS = ("purpose", "expires_after[anchor]", "expires_after[seconds]")
FILE = "file"
MAX_FIELD_BYTES = 256
MAX_FILENAME_CHARS = 255
MAX_PARTS = 8
MAX_HEADER_BYTES = 4096


class FileForm:
    """`feed` each piece of the body and take what it has of the file; then `finish`."""

    def __init__(self, content_type: str | None) -> None:
        """Raises UnsupportedMediaTypeError."""
        self.fields: dict[str, str] = {}
        self.filename: str | None = None
        self._names: set[str] = set()
        self._part: str | None = None
        self._value = bytearray()
        self._file = bytearray()
        self._header_name = bytearray()
        self._header_value = bytearray()
        self._disposition = ""
        self._is_complete = False
        self._parser = MultipartParser(
            _boundary(content_type),
            {
                "on_part_begin": self._begin_part,
                "on_header_field": self._extend_header_name,
                "on_header_value": self._extend_header_value,
                "on_header_end": self._end_header,
                "on_headers_finished": self._open_part,
                "on_part_data": self._take,
                "on_part_end": self._end_part,
                "on_end": self._end,
            },
        )

    def feed(self, chunk: bytes) -> bytes:
        """What the chunk has of the file. Raises BadRequestError."""
        try:
            self._parser.write(chunk)
        except FormParserError as error:
            raise BadRequestError(
                "The body is not valid multipart/form-data.", code="multipart_invalid"
            ) from error
        found = bytes(self._file)
        self._file.clear()
        return found

    def finish(self) -> None:
        """Raises BadRequestError where the body is cut short or has no file."""
        if not self._is_complete:
            raise BadRequestError(
                "The multipart body ends before its closing boundary.", code="length_mismatch"
            )
        for name in (FILE, "purpose"):
            if name not in self._names:
                raise BadRequestError(
                    f"Missing required parameter: '{name}'.",
                    code="missing_required_parameter",
                    param=name,
                )

    def _begin_part(self) -> None:
        self._disposition = ""
        self._part = None
        self._value.clear()

    def _extend_header_name(self, data: bytes, start: int, end: int) -> None:
        self._header_name += data[start:end]
        self._check_header()

    def _extend_header_value(self, data: bytes, start: int, end: int) -> None:
        self._header_value += data[start:end]
        self._check_header()

    def _check_header(self) -> None:
        if len(self._header_name) + len(self._header_value) > MAX_HEADER_BYTES:
            raise BadRequestError("A part's header is too long.", code="multipart_invalid")

    def _end_header(self) -> None:
        if self._header_name.lower() == b"content-disposition":
            self._disposition = self._header_value.decode("latin-1")
        self._header_name.clear()
        self._header_value.clear()

    def _open_part(self) -> None:
        _, options = parse_options_header(self._disposition)
        name = options.get(b"name", b"").decode("utf-8", "replace")
        if name in self._names or len(self._names) >= MAX_PARTS:
            raise BadRequestError(f"'{name}' was sent twice.", param=name)
        if name not in (FILE, *FIELDS):
            raise BadRequestError(
                f"Unknown parameter: '{shorten(name)}'.",
                code="unknown_parameter",
                param=shorten(name),
            )
        self._names.add(name)
        self._part = name
        if name == FILE:
            self.filename = _clean(options.get(b"filename", b""))

    def _take(self, data: bytes, start: int, end: int) -> None:
        if self._part == FILE:
            self._file += data[start:end]
            return
        self._value += data[start:end]
        if len(self._value) > MAX_FIELD_BYTES:
            raise BadRequestError(f"'{self._part}' is too long.", param=self._part)

    def _end_part(self) -> None:
        if self._part is not None and self._part != FILE:
            self.fields[self._part] = self._value.decode("utf-8", "replace")

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


def _clean(filename: bytes) -> str:
    """The name without folders and without what no table or header could hold."""
    name = filename.decode("utf-8", "replace").replace("\\", "/").rpartition("/")[2]
    kept = "".join(char for char in name if char.isprintable())
    return kept[:MAX_FILENAME_CHARS] or "file"
