"""What nothing that Tenfold says may hold: the tests' secrets and prompts, however they are spelt.

Knows nothing of where it is looked for. Invariant: an API key is known by its form and checksum,
whoever made it; everything else by what it says, in clear and in the ways that a text is usually
encoded.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from functools import cached_property
from typing import Any
from urllib.parse import quote

import re2

from app.api_keys.secret import NUM_CHECKSUM_CHARS, NUM_RANDOM_CHARS, PREFIX, is_well_formed

PROMPT = "the canary sings at dawn"
"""What tests ask where it does not matter what they ask."""
MIN_CHARS = 8
"""Of a canary: less is anywhere."""
_KEY = f"{PREFIX}[0-9A-Za-z]{{{NUM_RANDOM_CHARS + NUM_CHECKSUM_CHARS}}}".encode()
_OPTIONS = re2.Options()
_OPTIONS.max_mem = 64 << 20  # bytes: a long list of answers is no short pattern


def spellings(canary: str) -> set[bytes]:
    """The ways in which a text may have come somewhere."""
    raw = canary.encode()
    found = {raw, raw.hex().encode(), quote(canary, safe="").encode()}
    found.add(json.dumps(canary)[1:-1].encode())
    for begin in range(3):  # where it begins within a longer text in base 64
        padded = base64.b64encode(b"\0" * begin + raw)
        found.add(padded[(0, 2, 3)[begin] : -4])
    return found


class Canaries:
    """`found_in` is one pass over what is looked through, however many there are."""

    def __init__(self, canaries: Mapping[str, str] = {}) -> None:
        """canaries: by what they are called where one is found."""
        self._names: dict[bytes, str] = {}
        for name, canary in canaries.items():
            self.add(name, canary)

    def add(self, name: str, canary: str) -> None:
        assert len(canary) >= MIN_CHARS, name
        self._names |= dict.fromkeys(spellings(canary), name)
        self.__dict__.pop("_pattern", None)

    def found_in(self, content: bytes) -> list[str]:
        """The names of those that are in it, each once, and `an API key` for any key."""
        found = (match.group() for match in self._pattern.finditer(content))
        return sorted({name for each in found if (name := self._name_of(each))})

    def _name_of(self, found: bytes) -> str | None:
        if found in self._names:
            return self._names[found]
        return "an API key" if is_well_formed(found.decode()) else None

    @cached_property
    def _pattern(self) -> Any:
        # Of two that begin at one place the longer: it is the one that says more.
        spelled = sorted(self._names, key=len, reverse=True)
        return re2.compile(b"|".join([*map(re2.escape, spelled), _KEY]), _OPTIONS)
