"""Golden prompts that an adapter brings with it: `eval.jsonl`, one JSON object a line.

Knows nothing of uploads or of how they are asked. Blocking, and it compiles what a tenant wrote: in
a thread. Invariant: a line is read as strictly as an adapter's configuration, and is a prompt that
a rollout takes, or the file is none.
"""

from __future__ import annotations

from collections.abc import Iterator

from pydantic import ValidationError

from app.rollouts.expectations import ExpectationError
from app.rollouts.golden_schemas import MAX_PROMPTS, GoldenPrompt
from lora.strict_json import DuplicateKeyError, StrictJsonError, read_json

MAX_BYTES = 1 << 20
MAX_LINE_BYTES = 128 << 10


class GoldenFileError(ValueError):
    """What is wrong with a file. `line`, from 1 on; None where it is the whole."""

    def __init__(self, message: str, line: int | None = None) -> None:
        super().__init__(message if line is None else f"line {line}: {message}")
        self.line = line


def problems_of(content: bytes) -> list[GoldenFileError]:
    """All that is wrong with a file."""
    return [each for each in _lines(content) if isinstance(each, GoldenFileError)]


def read_golden_file(content: bytes) -> list[GoldenPrompt]:
    """Its prompts, in order. Raises GoldenFileError."""
    prompts = []
    for each in _lines(content):
        if isinstance(each, GoldenFileError):
            raise each
        prompts.append(each)
    return prompts


def _lines(content: bytes) -> Iterator[GoldenPrompt | GoldenFileError]:
    if len(content) > MAX_BYTES:
        yield GoldenFileError(f"it has more than {MAX_BYTES} bytes")
        return
    lines = content.removesuffix(b"\n").split(b"\n")
    if len(lines) > MAX_PROMPTS:
        yield GoldenFileError(f"it has more than {MAX_PROMPTS} lines")
        return
    for number, line in enumerate(lines, 1):
        try:
            yield _read_line(line)
        except (DuplicateKeyError, StrictJsonError, ExpectationError) as error:
            yield GoldenFileError(str(error), number)
        except ValidationError as error:
            yield GoldenFileError(_first_problem(error), number)


def _read_line(line: bytes) -> GoldenPrompt:
    prompt = GoldenPrompt.model_validate(read_json(line, MAX_LINE_BYTES))
    prompt.expectation()
    return prompt


def _first_problem(error: ValidationError) -> str:
    """Without what was sent: a report is shown to whoever may see the version."""
    first = error.errors(include_url=False, include_context=False, include_input=False)[0]
    place = ".".join(str(each) for each in first["loc"])
    return f"{place}: {first['msg']}" if place else first["msg"]
