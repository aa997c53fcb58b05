"""A file's upload as it arrives: the file piece by piece, and its few short fields.

Blocking: feed it from a thread. Knows nothing of what is done with the bytes. Invariants: memory
holds what was fed and the fields; a field that nobody documents is refused by name.
"""

from __future__ import annotations

from app.errors import BadRequestError, shorten
from app.form_reader import FormReader

FIELDS = ("purpose", "expires_after[anchor]", "expires_after[seconds]")
FILE = "file"
MAX_FIELD_BYTES = 256
MAX_FILENAME_CHARS = 255
MAX_PARTS = 8


class FileForm:
    """`feed` each piece of the body and take what it has of the file; then `finish`."""

    def __init__(self, content_type: str | None) -> None:
        """Raises UnsupportedMediaTypeError."""
        self.fields: dict[str, str] = {}
        self.filename: str | None = None
        self._names: set[str] = set()
        self._part = ""
        self._value = bytearray()
        self._file = bytearray()
        self._reader = FormReader(content_type, self, max_parts=MAX_PARTS)

    def feed(self, chunk: bytes) -> bytes:
        """What the chunk has of the file. Raises BadRequestError."""
        self._reader.feed(chunk)
        found = bytes(self._file)
        self._file.clear()
        return found

    def finish(self) -> None:
        """Raises BadRequestError where the body is cut short or has no file."""
        self._reader.finish()
        for name in (FILE, "purpose"):
            if name not in self._names:
                raise BadRequestError(
                    f"Missing required parameter: '{name}'.",
                    code="missing_required_parameter",
                    param=name,
                )

    def open_part(self, field: str, filename: str) -> None:
        if field in self._names:
            raise BadRequestError(f"'{field}' was sent twice.", param=field)
        if field not in (FILE, *FIELDS):
            raise BadRequestError(
                f"Unknown parameter: '{shorten(field)}'.",
                code="unknown_parameter",
                param=shorten(field),
            )
        self._names.add(field)
        self._part = field
        self._value.clear()
        if field == FILE:
            self.filename = _clean(filename)

    def take(self, data: bytes) -> None:
        if self._part == FILE:
            self._file += data
            return
        self._value += data
        if len(self._value) > MAX_FIELD_BYTES:
            raise BadRequestError(f"'{self._part}' is too long.", param=self._part)

    def end_part(self) -> None:
        if self._part != FILE:
            self.fields[self._part] = self._value.decode("utf-8", "replace")


def _clean(filename: str) -> str:
    """The name without what no table or header could hold."""
    kept = "".join(char for char in filename if char.isprintable())
    return kept[:MAX_FILENAME_CHARS] or "file"
