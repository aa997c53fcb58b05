"""What the readers of a configuration ask of a value, whatever its field. Pure functions."""

from __future__ import annotations

from typing import TypeGuard, TypeVar

from lora.findings import clean

Kind = TypeVar("Kind")


def is_empty(value: object) -> bool:
    """Whether a field says nothing: null, false, or an empty string, list or object."""
    return value is None or value is False or (isinstance(value, (str, list, dict)) and not value)


def is_list_of(value: object, kind: type[Kind]) -> TypeGuard[list[Kind]]:
    """A list of exactly this type: true is not an integer here."""
    return isinstance(value, list) and all(type(entry) is kind for entry in value)


def shown(value: object) -> str:
    """A value as a finding shows it."""
    return clean(repr(value), 120)
