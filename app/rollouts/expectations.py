"""What an answer to a golden prompt must be: a text, a pattern, or JSON of a schema.

Knows nothing of rollouts or queues. Whoever writes an expectation may be a tenant. Invariants: a
pattern runs on RE2, and a schema's patterns on a linear engine; a schema refers to nothing, neither
to the network nor to itself, so that looking at an answer takes a time that grows with the two
sizes and never explodes.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

import jsonschema_rs

from lora.patterns import PatternError, compile_pattern

MAX_PATTERN_CHARS = 512
MAX_SCHEMA_CHARS = 8192
MAX_REGEX_BYTES = 1 << 20  # compiled

# References may go in circles, or double what they refer to at each level; the others look at what
# was looked at before.
REFUSED_KEYWORDS = frozenset(
    {"$ref", "$dynamicRef", "$recursiveRef", "unevaluatedItems", "unevaluatedProperties"}
)

IsMet = Callable[[str], bool]
"""Whether an answer is what was expected. Takes milliseconds: in a thread."""


class ExpectationError(ValueError):
    """It is none, or none that is looked at here; the text may be shown."""


def expects_text(text: str) -> IsMet:
    """The answer is `text`, but for blanks around it."""
    wanted = text.strip()
    return lambda answer: answer.strip() == wanted


def expects_pattern(pattern: str) -> IsMet:
    """The pattern (RE2) is found in the answer. Raises ExpectationError."""
    if len(pattern) > MAX_PATTERN_CHARS:
        raise ExpectationError(f"the pattern has more than {MAX_PATTERN_CHARS} characters")
    try:
        compiled = compile_pattern(pattern)
    except PatternError as error:
        raise ExpectationError(f"the pattern: {error}") from error
    return lambda answer: compiled.search(answer) is not None


def expects_json(schema: dict[str, Any]) -> IsMet:
    """The answer is JSON of this schema (2020-12, or the draft that it names).

    Raises ExpectationError.
    """
    if len(json.dumps(schema)) > MAX_SCHEMA_CHARS:
        raise ExpectationError(f"the schema has more than {MAX_SCHEMA_CHARS} characters")
    for refused in REFUSED_KEYWORDS.intersection(_keys(schema)):
        raise ExpectationError(f"the schema: '{refused}' is not supported")
    try:
        validator = jsonschema_rs.validator_for(
            schema,
            retriever=_retrieve_nothing,
            pattern_options=jsonschema_rs.RegexOptions(size_limit=MAX_REGEX_BYTES),
        )
    except ValueError as error:
        raise ExpectationError(f"the schema is none: {str(error)[:200]}") from error

    def is_met(answer: str) -> bool:
        try:
            return validator.is_valid(json.loads(answer))
        except (ValueError, RecursionError):  # no JSON, or deeper than anything reads
            return False

    return is_met


def _keys(value: Any) -> Iterator[str]:
    """The names of all members at any depth."""
    waiting = [value]
    while waiting:
        found = waiting.pop()
        if isinstance(found, dict):
            yield from found
            waiting += found.values()
        elif isinstance(found, list):
            waiting += found


def _retrieve_nothing(uri: str) -> Any:
    raise ValueError("a schema refers to nothing outside it")
