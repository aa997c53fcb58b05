"""The lines of a batch's output and error files, as OpenAI writes them.

Pure: knows nothing of how an answer is made. Invariant: every line that was answered is in exactly
one of the two files: with status 200 in the output, else among the errors.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Any

import msgspec

from app.batches.lines import InputLine
from app.completions.responses import Usage
from app.errors import ApiError
from app.ids import hex_of, id_of_hex

_TIME_DIGITS = 12  # of an id: the hex digits that say when it was made


@dataclass(frozen=True, slots=True)
class LineAnswer:
    """`content` is the line of its file, without its end."""

    number: int
    is_error: bool
    content: bytes
    usage: Usage | None = None


class _Response(msgspec.Struct, frozen=True):
    status_code: int
    request_id: str
    body: Any


class _Failure(msgspec.Struct, frozen=True):
    code: str
    message: str


class _OutputLine(msgspec.Struct, frozen=True):
    id: str
    custom_id: str
    response: _Response | None
    error: _Failure | None


def line_request_id(batch_id: str, number: int) -> str:
    """The id of the line's request, the same whenever and wherever it is run."""
    digest = hashlib.sha256(f"{batch_id}/{number}".encode()).hexdigest()
    return id_of_hex("req", hex_of(batch_id)[:_TIME_DIGITS] + digest[: 32 - _TIME_DIGITS])


def answered(batch_id: str, line: InputLine, body: msgspec.Struct, usage: Usage) -> LineAnswer:
    """The line was served."""
    request_id = line_request_id(batch_id, line.number)
    response = _Response(200, request_id, body)
    return LineAnswer(line.number, False, _encoded(request_id, line, response, None), usage)


def refused(batch_id: str, line: InputLine, error: ApiError) -> LineAnswer:
    """The line was answered with an error, as its request would have been."""
    request_id = line_request_id(batch_id, line.number)
    response = _Response(error.status, request_id, error.body())
    return LineAnswer(line.number, True, _encoded(request_id, line, response, None))


def never_run(batch_id: str, line: InputLine, code: str, message: str) -> LineAnswer:
    """The line was never sent."""
    request_id = line_request_id(batch_id, line.number)
    failure = _Failure(code, message)
    return LineAnswer(line.number, True, _encoded(request_id, line, None, failure))


def _encoded(
    request_id: str, line: InputLine, response: _Response | None, failure: _Failure | None
) -> bytes:
    output = _OutputLine(f"batch_req_{hex_of(request_id)}", line.custom_id, response, failure)
    return msgspec.json.encode(output)
