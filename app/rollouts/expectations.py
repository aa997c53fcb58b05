"""What an answer to a golden prompt must be: a text, a pattern, or JSON of a schema.

Knows nothing of rollouts or queues. Whoever writes an expectation may be a tenant. Invariants: a
pattern runs on RE2, and a schema's patterns on a linear engine; a schema refers to nothing, neither
to the network nor to itself, and is bounded in characters, depth, values and patterns, so that
making one takes milliseconds, and looking at an answer a time that grows with the two sizes and
never explodes.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import jsonschema_rs

from lora.patterns import PatternError, compile_pattern

MAX_PATTERN_CHARS = 512
MAX_SCHEMA_CHARS = 8192
MAX_SCHEMA_DEPTH = 32
MAX_SCHEMA_VALUES = 1024  # of any kind, at any depth
MAX_SCHEMA_PATTERNS = 16
MAX_REGEX_BYTES = 128 << 10  # compiled
MAX_ANSWER_CHARS = 16_384  # no 512 tokens of sense have so many

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
    """The pattern (RE2) is found in the answer. Takes milliseconds: in a thread.

    Raises ExpectationError.
    """
    _check_length(pattern)
    try:
        compiled = compile_pattern(pattern)
    except PatternError as error:
        raise ExpectationError(f"the pattern: {error}") from error
    return lambda answer: len(answer) <= MAX_ANSWER_CHARS and compiled.search(answer) is not None


def expects_json(schema: dict[str, Any]) -> IsMet:
    """The answer is JSON of this schema (2020-12, or the draft that it names).

    Takes milliseconds: in a thread. Raises ExpectationError.
    """
    _check_bounds(schema)
    if len(json.dumps(schema)) > MAX_SCHEMA_CHARS:
        raise ExpectationError(f"the schema has more than {MAX_SCHEMA_CHARS} characters")
    try:
        validator = jsonschema_rs.validator_for(
            schema,
            retriever=_retrieve_nothing,
            pattern_options=jsonschema_rs.RegexOptions(size_limit=MAX_REGEX_BYTES),
        )
    except ValueError as error:
        raise ExpectationError(f"the schema is none: {str(error)[:200]}") from error

    def is_met(answer: str) -> bool:
        if len(answer) > MAX_ANSWER_CHARS:
            return False
        try:
            return validator.is_valid(json.loads(answer))
        except (ValueError, RecursionError):  # no JSON, or deeper than anything reads
            return False

    return is_met


def _check_bounds(schema: dict[str, Any]) -> None:
    """Before anything is made of it. Raises ExpectationError."""
    num_values = num_patterns = 0
    waiting: list[tuple[Any, int]] = [(schema, 1)]
    while waiting:
        value, depth = waiting.pop()
        num_values += 1
        if depth > MAX_SCHEMA_DEPTH:
            raise ExpectationError(f"the schema is deeper than {MAX_SCHEMA_DEPTH} levels")
        if num_values > MAX_SCHEMA_VALUES:
            raise ExpectationError(f"the schema has more than {MAX_SCHEMA_VALUES} values")
        if isinstance(value, dict):
            for refused in REFUSED_KEYWORDS.intersection(value):
                raise ExpectationError(f"the schema: '{refused}' is not supported")
            num_patterns += _check_patterns(value)
            waiting += [(each, depth + 1) for each in value.values()]
        elif isinstance(value, list):
            waiting += [(each, depth + 1) for each in value]
    if num_patterns > MAX_SCHEMA_PATTERNS:
        raise ExpectationError(f"the schema has more than {MAX_SCHEMA_PATTERNS} patterns")


def _check_patterns(value: dict[str, Any]) -> int:
    """How many patterns one object of a schema has of its own. Raises ExpectationError."""
    if value.get("format") == "regex":  # it would have the answer compiled
        raise ExpectationError("the schema: the format 'regex' is not supported")
    named = value.get("patternProperties")
    patterns = [*named] if isinstance(named, dict) else []
    if isinstance(value.get("pattern"), str):
        patterns.append(value["pattern"])
    for pattern in patterns:
        _check_length(pattern)
    return len(patterns)


def _check_length(pattern: str) -> None:
    if len(pattern) > MAX_PATTERN_CHARS:
        raise ExpectationError(f"a pattern has more than {MAX_PATTERN_CHARS} characters")


def _retrieve_nothing(uri: str) -> Any:
    raise ValueError("a schema refers to nothing outside it")
