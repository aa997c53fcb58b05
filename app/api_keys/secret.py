"""What a key looks like: `tf_`, 43 random characters, 6 characters of a checksum over both.

Knows nothing of the registry. Invariant: whether a text can be a key is decided from the text
alone, so that noise costs no look-up, and a scanner that finds one in a log knows what it has.
"""

from __future__ import annotations

import secrets
import zlib

PREFIX = "tf_"
NUM_RANDOM_CHARS = 43  # 256 bits in base 62
NUM_CHECKSUM_CHARS = 6  # 32 bits in base 62
SECRET_CHARS = len(PREFIX) + NUM_RANDOM_CHARS + NUM_CHECKSUM_CHARS

# No `-` and no `_`: a double click takes the whole of it.
_ALPHABET = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"


def new_secret() -> str:
    body = PREFIX + "".join(secrets.choice(_ALPHABET) for _ in range(NUM_RANDOM_CHARS))
    return body + _checksum(body)


def is_well_formed(text: str) -> bool:
    """Whether `text` can be a key at all; 1 in 2^32 of what is mistyped passes."""
    body = text[:-NUM_CHECKSUM_CHARS]
    return (
        len(text) == SECRET_CHARS
        and text.isascii()
        and text.startswith(PREFIX)
        and text[-NUM_CHECKSUM_CHARS:] == _checksum(body)
    )


def _checksum(body: str) -> str:
    number = zlib.crc32(body.encode())
    digits = []
    for _ in range(NUM_CHECKSUM_CHARS):
        number, digit = divmod(number, len(_ALPHABET))
        digits.append(_ALPHABET[digit])
    return "".join(reversed(digits))
