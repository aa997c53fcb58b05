"""A tenant's regular expressions, with PEFT's meaning and RE2's bounded time.

PEFT matches with Python's `re`, whose backtracking a tenant could abuse. RE2 has no backtracking
but is another language, so only what both languages read alike is let through. Invariant: a
pattern that compiles here matches exactly the names that it matches in PEFT.

One more thing is let through: a negative look-ahead that can match nowhere in the names at hand
changes nothing and becomes an empty group. Trainers write `(?!.*\\.experts\\.\\d)` into their
patterns, and on a base without experts that is all it means.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from typing import Protocol, cast

import re2

_OPTIONS = re2.Options()
_OPTIONS.log_errors = False
_OPTIONS.max_mem = 1 << 20

# Escapes that mean the same in both languages, for names of printable ASCII.
_SHARED_ESCAPES = frozenset("dDwWsSbBAtnrfv")


class PatternError(ValueError):
    """The pattern is too long, or says something that the two languages do not share."""


class Match(Protocol):
    """What Tenfold asks of a match."""

    def group(self, name: str, /) -> str: ...


class Pattern(Protocol):
    """What Tenfold asks of a compiled pattern."""

    def match(self, text: str, /) -> Match | None: ...
    def fullmatch(self, text: str, /) -> Match | None: ...
    def search(self, text: str, /) -> Match | None: ...


def check_pattern(pattern: str, max_chars: int, names: Collection[str] = ()) -> str:
    """The pattern, ready for RE2, after checking it against the shared language.

    `names` is everything it will ever be matched against; without them no look-ahead is taken.

    Raises:
        PatternError: too long, or not in the shared language.
    """
    if len(pattern) > max_chars:
        raise PatternError(f"{len(pattern)} characters exceed the limit of {max_chars}")
    if not (pattern.isascii() and pattern.isprintable()):
        raise PatternError("only printable ASCII is accepted")
    kept: list[str] = []
    position = 0
    while position < len(pattern):
        if pattern.startswith("(?!", position):
            end = _end_of_group(pattern, position)
            if pattern[end : end + 1] in {*"*+?{"}:
                raise PatternError("a repeated look-ahead is not supported")
            _check_idle(pattern[position + 3 : end - 1], max_chars, names)
            kept.append("(?:)")
        else:
            end = _end_of_token(pattern, position)
            kept.append(pattern[position:end])
        position = end
    return "".join(kept)


def compile_pattern(pattern: str) -> Pattern:
    """Compile what `check_pattern` returned, or an expression built around it.

    Raises:
        PatternError: RE2 cannot express it, or only with more memory than it is given; or Python
            cannot, so that PEFT could not load it.
    """
    try:
        compiled = cast(Pattern, re2.compile(pattern, _OPTIONS))
        re.compile(pattern)
    except re2.error as error:
        detail = error.args[0] if error.args else b""
        text = detail.decode(errors="replace") if isinstance(detail, bytes) else str(detail)
        raise PatternError(f"RE2 cannot express it: {text}") from None
    except (re.error, RecursionError) as error:
        raise PatternError(f"Python cannot read it: {error}") from None
    return compiled


def _check_idle(body: str, max_chars: int, names: Collection[str]) -> None:
    if not names:
        raise PatternError("look-ahead is not supported")
    look_ahead = compile_pattern(check_pattern(body, max_chars))
    if any(look_ahead.search(name) is not None for name in names):
        raise PatternError("a look-ahead that excludes modules of this base is not supported")


def _end_of_token(pattern: str, position: int) -> int:
    """The end of the escape, class, group opening or character that begins at `position`."""
    char = pattern[position]
    if char == "\\":
        return _end_of_escape(pattern, position)
    if char == "[":
        return _end_of_class(pattern, position)
    if pattern.startswith("(?", position) and not pattern.startswith("(?:", position):
        raise PatternError("look-around, flags and named groups are not supported")
    if pattern.startswith("{,", position):
        raise PatternError("a repetition needs its lower bound")
    return position + 1


def _end_of_escape(pattern: str, position: int) -> int:
    escaped = pattern[position + 1 : position + 2]
    if not escaped or (escaped.isalnum() and escaped not in _SHARED_ESCAPES):
        raise PatternError(f"the escape \\{escaped} is not supported")
    return position + 2


def _end_of_class(pattern: str, position: int) -> int:
    position += 1
    position += pattern.startswith("^", position)
    position += pattern.startswith("]", position)
    while position < len(pattern):
        if pattern[position] == "]":
            return position + 1
        if pattern[position] == "[":
            raise PatternError("a bracket within a class must be escaped")
        if pattern[position : position + 2] in ("--", "&&", "||", "~~"):
            raise PatternError("what Python keeps for operations on classes is not supported")
        position = _end_of_escape(pattern, position) if pattern[position] == "\\" else position + 1
    raise PatternError("a class is not closed")


def _end_of_group(pattern: str, position: int) -> int:
    depth = 0
    while position < len(pattern):
        char = pattern[position]
        if char == "\\":
            position = _end_of_escape(pattern, position)
            continue
        if char == "[":
            position = _end_of_class(pattern, position)
            continue
        depth += (char == "(") - (char == ")")
        position += 1
        if depth == 0:
            return position
    raise PatternError("a group is not closed")
