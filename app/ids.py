"""Typed object ids: `ten_`, `key_`, `adp_`, `ver_` followed by 26 sortable characters.

Knows nothing of what the ids name. Invariant: ids made later sort later (to the millisecond), so
that an id doubles as a page cursor.
"""

from __future__ import annotations

import secrets
import time
from typing import Literal

Prefix = Literal["ten", "key", "adp", "ver", "job", "req", "aud"]

_ALPHABET = "0123456789abcdefghjkmnpqrstvwxyz"  # Crockford's base 32, lower case
_TIME_BITS = 48
_RANDOM_BITS = 80
_NUM_DIGITS = 26


def new_id(prefix: Prefix) -> str:
    """A fresh id, for instance `ten_01kb7c2v3n8q4r5s6t7v8w9x0y` (ULID's layout)."""
    milliseconds = time.time_ns() // 1_000_000 & ((1 << _TIME_BITS) - 1)
    number = milliseconds << _RANDOM_BITS | secrets.randbits(_RANDOM_BITS)
    digits = (_ALPHABET[number >> shift & 31] for shift in range(5 * (_NUM_DIGITS - 1), -1, -5))
    return f"{prefix}_{''.join(digits)}"
