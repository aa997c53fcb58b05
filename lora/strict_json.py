"""JSON from a tenant, read strictly: bounded, finite, no field twice, no recursion bomb.

Knows nothing of what the document means. Invariant: what it returns holds only finite numbers, and
integers of at most 18 digits.
"""

from __future__ import annotations

import json
import math

_MAX_INT_CHARS = 19
_MAX_DEPTH = 32


class StrictJsonError(Exception):
    """The bytes are not such a document."""


class DuplicateKeyError(StrictJsonError):
    """An object names a field twice; `key` is the field."""

    def __init__(self, key: str) -> None:
        super().__init__("a field is named twice")
        self.key = key


def read_json(data: bytes, max_bytes: int) -> object:
    """Decode `data`, which must be UTF-8 without a byte order mark.

    Raises:
        StrictJsonError: too long, not JSON, NaN or infinity, a huge number, nested too deeply.
        DuplicateKeyError: a field is named twice.
    """
    if len(data) > max_bytes:
        raise StrictJsonError(f"{len(data)} bytes exceed the limit of {max_bytes}")
    try:
        document: object = json.loads(
            data.decode("utf-8"),
            object_pairs_hook=_object,
            parse_int=_int,
            parse_float=_float,
            parse_constant=_constant,
        )
    except RecursionError:
        raise StrictJsonError("nested too deeply") from None
    except UnicodeDecodeError:
        raise StrictJsonError("not UTF-8") from None
    except json.JSONDecodeError as error:
        raise StrictJsonError(f"not JSON: {error}") from None
    _check_depth(document)
    return document


def _check_depth(document: object) -> None:
    level = [document]
    for _ in range(_MAX_DEPTH):
        containers = [value for value in level if isinstance(value, (dict, list))]
        level = [
            child
            for value in containers
            for child in (value.values() if isinstance(value, dict) else value)
        ]
        if not level:
            return
    raise StrictJsonError(f"nested deeper than {_MAX_DEPTH}")


def _object(pairs: list[tuple[str, object]]) -> dict[str, object]:
    fields: dict[str, object] = {}
    for key, value in pairs:
        if key in fields:
            raise DuplicateKeyError(key)
        fields[key] = value
    return fields


def _int(literal: str) -> int:
    if len(literal) > _MAX_INT_CHARS:
        raise StrictJsonError(f"an integer of {len(literal)} digits")
    return int(literal)


def _float(literal: str) -> float:
    value = float(literal)
    if not math.isfinite(value):
        raise StrictJsonError("a number beyond the range of a float")
    return value


def _constant(literal: str) -> float:
    raise StrictJsonError(f"{literal} is not a number")
