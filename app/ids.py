"""Typed object ids: `ten_`, `key_`, `adp_`, `ver_` followed by 26 sortable characters.

Knows nothing of what the ids name. Invariant: ids made later sort later (to the millisecond), so
that an id doubles as a page cursor.
"""

from __future__ import annotations

import secrets
import time
from typing import Literal

Prefix = Literal[
    "ten",
    "key",
    "adp",
    "ver",
    "job",
    "req",
    "aud",
    "pln",
    "prc",
    "upl",
    "imp",
    "alc",
    "ers",
    "rol",
    "fil",
    "bat",
]

_ALPHABET = "0123456789abcdefghjkmnpqrstvwxyz"  # Crockford's base 32, lower case
_TIME_BITS = 48
_RANDOM_BITS = 80
_NUM_DIGITS = 26


def new_id(prefix: Prefix) -> str:
    """A fresh id, for instance `ten_01kb7c2v3n8q4r5s6t7v8w9x0y` (ULID's layout)."""
    milliseconds = time.time_ns() // 1_000_000 & ((1 << _TIME_BITS) - 1)
    number = milliseconds << _RANDOM_BITS | secrets.randbits(_RANDOM_BITS)
    return f"{prefix}_{_digits(number)}"


def hex_of(object_id: str) -> str:
    """The 32 hex digits of an id's number: a request's choices are `<hex>-<k>`."""
    number = 0
    for digit in object_id.rpartition("_")[2]:
        number = number << 5 | _ALPHABET.index(digit)
    return f"{number:032x}"


def id_of_hex(prefix: Prefix, hex_digits: str) -> str:
    """The inverse of `hex_of`."""
    return f"{prefix}_{_digits(int(hex_digits, 16))}"


def made_at(hex_digits: str) -> float:
    """When an id was made, in seconds since 1970, from its number's 32 hex digits."""
    return (int(hex_digits, 16) >> _RANDOM_BITS) / 1000


def _digits(number: int) -> str:
    shifts = range(5 * (_NUM_DIGITS - 1), -1, -5)
    return "".join(_ALPHABET[number >> shift & 31] for shift in shifts)
