"""The input of a batch: a JSON object a line, `{custom_id, method, url, body}`.

Pure: knows nothing of files, tenants or models. Invariants: a line that is read here has a name,
its own in the batch, and a body that is an object; whether that can be served is found out when its
turn comes; no message repeats what a line says.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

MAX_CUSTOM_ID_CHARS = 512
MAX_MODEL_CHARS = 512
MAX_LINES = 50_000  # OpenAI's
MAX_ERRORS = 100
_FIELDS = ("custom_id", "method", "url", "body")


@dataclass(frozen=True, slots=True)
class InputLine:
    """`number` is the line's in the file, from 1; empty lines count."""

    number: int
    custom_id: str
    body: dict[str, Any]


class LineError(Exception):
    """Why a line cannot be read: a stable code, and a sentence for the tenant."""

    def __init__(self, code: str, message: str, param: str | None = None) -> None:
        super().__init__(code)
        self.code = code
        self.message = message
        self.param = param

    def shown(self, number: int | None) -> dict[str, Any]:
        return {
            "code": self.code,
            "line": number,
            "message": self.message,
            "param": self.param,
        }


def read_line(number: int, raw: bytes, endpoint: str, max_bytes: int) -> InputLine:
    """Raises LineError."""
    if len(raw) > max_bytes:
        raise LineError("line_too_long", f"A line holds {max_bytes} bytes at most.")
    try:
        said = json.loads(raw)
    except (ValueError, RecursionError):
        raise LineError("invalid_json_line", "This line is not valid JSON.") from None
    if not isinstance(said, dict):
        raise LineError("invalid_json_line", "This line is not a JSON object.")
    for name in _FIELDS:
        if name not in said:
            raise LineError(
                "missing_required_parameter", f"Missing required parameter: '{name}'.", name
            )
    custom_id, body = said["custom_id"], said["body"]
    if not isinstance(custom_id, str) or not _is_name(custom_id, MAX_CUSTOM_ID_CHARS):
        raise LineError(
            "invalid_value",
            f"'custom_id' is a text of 1 to {MAX_CUSTOM_ID_CHARS} characters.",
            "custom_id",
        )
    if said["method"] != "POST":
        raise LineError("invalid_method", "'method' is 'POST'.", "method")
    if said["url"] != endpoint:
        raise LineError("mismatched_url", "'url' is the batch's 'endpoint'.", "url")
    if not isinstance(body, dict):
        raise LineError("invalid_type", "'body' is a JSON object.", "body")
    return InputLine(number, custom_id, body)


@dataclass(slots=True)
class Validation:
    """`take` every line that is not empty; then `finish`."""

    endpoint: str
    max_line_bytes: int
    num_lines: int = 0
    errors: list[dict[str, Any]] = field(default_factory=list)
    models: set[str] = field(default_factory=set)
    _custom_ids: set[str] = field(default_factory=set)

    @property
    def is_hopeless(self) -> bool:
        """Whether there is no point in reading on."""
        return len(self.errors) >= MAX_ERRORS or self.num_lines > MAX_LINES

    @property
    def model(self) -> str | None:
        """The model of all lines, where they name the same."""
        return next(iter(self.models)) if len(self.models) == 1 else None

    def take(self, number: int, raw: bytes) -> None:
        self.num_lines += 1
        try:
            line = read_line(number, raw, self.endpoint, self.max_line_bytes)
            if line.custom_id in self._custom_ids:
                raise LineError(
                    "duplicate_custom_id", "Another line has this 'custom_id'.", "custom_id"
                )
        except LineError as error:
            self.errors.append(error.shown(number))
            return
        self._custom_ids.add(line.custom_id)
        model = line.body.get("model")
        if isinstance(model, str) and len(self.models) < 2 and _is_name(model, MAX_MODEL_CHARS):
            self.models.add(model)

    def finish(self) -> list[dict[str, Any]]:
        """All that is wrong with the input; empty where it can be run."""
        if self.num_lines > MAX_LINES:
            return [
                LineError("too_many_lines", f"A batch has {MAX_LINES} lines at most.").shown(None)
            ]
        if not self.num_lines:
            return [LineError("empty_file", "The file has no line.").shown(None)]
        return self.errors


def _is_name(text: str, max_chars: int) -> bool:
    """JSON can spell what is no text, and NUL, which no table holds."""
    is_text = "\x00" not in text and not any("\ud800" <= char <= "\udfff" for char in text)
    return is_text and 1 <= len(text) <= max_chars
