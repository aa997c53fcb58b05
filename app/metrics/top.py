"""Which tenants have series of their own: the busiest few; the others share one.

A tenant's weight is what it did, halved every `half_life_s`. Who is not among the few enters when
it weighs half as much again as the lightest of them, so that the set does not flicker; the series
of whoever leaves are removed, and what it does from then on counts as `other`. (Forward decay:
Cormode et al. 2009.) Knows nothing of metrics. Invariants: at most `limit` labels beside `other`,
and at most `CANDIDATES` times as many tenants are remembered, however many there are.
"""

from __future__ import annotations

import time
from collections.abc import Callable

OTHER = "other"
HALF_LIFE_S = 600.0
CANDIDATES = 8
ENTRY_FACTOR = 1.5
MAX_HALVINGS = 64.0  # from when on weights are scaled down, long before a float is full


class TopLabels:
    """`label` for a tenant that does something now. on_leave: its series are to be removed."""

    def __init__(
        self,
        limit: int,
        on_leave: Callable[[str], None] = lambda _: None,
        *,
        half_life_s: float = HALF_LIFE_S,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._limit = limit
        self._on_leave = on_leave
        self._half_life_s = half_life_s
        self._clock = clock
        self._since = clock()
        self._members: dict[str, float] = {}
        self._candidates: dict[str, float] = {}

    @property
    def members(self) -> frozenset[str]:
        return frozenset(self._members)

    def label(self, name: str, weight: float = 1.0) -> str:
        """`name`, or `other`; it has done `weight` more."""
        grown = weight * self._growth()
        if name in self._members:
            self._members[name] += grown
            return name
        total = self._candidates.pop(name, 0.0) + grown
        if len(self._members) < self._limit:
            self._members[name] = total
            return name
        if self._limit > 0:
            lightest = min(self._members, key=self._members.__getitem__)
            if total > ENTRY_FACTOR * self._members[lightest]:
                self._candidates[lightest] = self._members.pop(lightest)
                self._members[name] = total
                self._on_leave(lightest)
                return name
        self._remember(name, total)
        return OTHER

    def name_of(self, name: str) -> str:
        """Its label as things are; nothing is counted, so it may be asked for every token."""
        return name if name in self._members else OTHER

    def _remember(self, name: str, total: float) -> None:
        if len(self._candidates) >= CANDIDATES * max(1, self._limit):
            self._candidates.pop(min(self._candidates, key=self._candidates.__getitem__))
        self._candidates[name] = total

    def _growth(self) -> float:
        """By how much what is done now weighs more than what was done at `_since`."""
        halvings = (self._clock() - self._since) / self._half_life_s
        if halvings > MAX_HALVINGS:
            self._scale(0.5**halvings)
            self._since, halvings = self._clock(), 0.0
        return float(2.0**halvings)

    def _scale(self, factor: float) -> None:
        for weights in (self._members, self._candidates):
            for name in weights:
                weights[name] *= factor
