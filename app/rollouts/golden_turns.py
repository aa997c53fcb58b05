"""Whose golden prompts are asked next: of the tenants that wait, whoever was served longest ago.

Knows nothing of rollouts. Invariants: a tenant has one turn at a time, so that whoever has many
rollouts, or slow ones, holds up its own alone; who was not served yet comes before who was, and
of two that were not, who waits longer.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import count


class Turns:
    """Of one worker."""

    def __init__(self) -> None:
        self._busy: set[str] = set()
        self._served: dict[str, int] = {}
        self._numbers = count(1)

    def take(self, waiting: Iterable[str]) -> str | None:
        """The tenant whose turn it is; whoever takes it calls `end`. None: all have theirs now.

        waiting: the tenants that wait, who waits longest first.
        """
        tenants = [each for each in waiting if each not in self._busy]
        # Nobody else is remembered: who does not wait has nothing to be compared by.
        known = {*tenants, *self._busy}
        self._served = {name: turn for name, turn in self._served.items() if name in known}
        if not tenants:
            return None
        chosen = min(tenants, key=lambda each: self._served.get(each, 0))
        self._busy.add(chosen)
        self._served[chosen] = next(self._numbers)
        return chosen

    def end(self, tenant_id: str) -> None:
        self._busy.discard(tenant_id)
