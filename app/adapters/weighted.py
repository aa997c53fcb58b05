"""Which of several weighted targets a request means: a stable draw.

Knows nothing of SQL or HTTP. Invariants: the same key always draws the same; keys are spread over
targets by their weights; where one target's weight grows at its neighbour's cost, whoever drew it
before draws it still, so that a canary's users stay its users.
"""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, get_args

StickyBy = Literal["safety_identifier", "user", "prompt_cache_key", "api_key"]
STICKY_FIELDS: tuple[str, ...] = get_args(StickyBy)

WHOLE = 100  # what the weights of an alias sum to: they are percents
_BITS = 64


@dataclass(frozen=True, slots=True)
class Draw:
    """What a request is drawn by: the field that the alias names, or else its own id.

    `values`: by the names of `STICKY_FIELDS`. They are an end user's: never log them.
    """

    request_id: str = field(default_factory=lambda: secrets.token_hex(16))
    values: Mapping[str, str | None] = field(default_factory=dict, repr=False)

    def key(self, alias: str, sticky_by: str | None) -> str:
        """`alias`: anything that tells this alias from others, so that they draw apart."""
        value = self.values.get(sticky_by) if sticky_by is not None else None
        return f"{alias}\0{sticky_by}:{value}" if value else f"{alias}\0{self.request_id}"


def pick(weights: Sequence[int], key: str) -> int:
    """The place of the target that `key` draws; weights are positive and in a fixed order."""
    digest = hashlib.sha256(key.encode("utf-8", "surrogatepass")).digest()
    point = int.from_bytes(digest[: _BITS // 8]) * sum(weights) >> _BITS
    for place, weight in enumerate(weights):
        point -= weight
        if point < 0:
            return place
    raise AssertionError("a point lies below the sum of weights")
