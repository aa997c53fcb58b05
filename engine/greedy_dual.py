"""When cold things leave: GreedyDual-Size (Cao & Irani 1997).

A thing that cools down gets the priority L + cost / size: what it would cost to bring back, in
seconds, for each page that it keeps. The lowest priority leaves first, and L becomes that
priority: so what is not used again for long goes, however dear it was. Knows nothing of what the
things are. Invariant: L never falls.
"""

from __future__ import annotations


class GreedyDual:
    """The L that everything cold in one pool shares."""

    def __init__(self) -> None:
        self._least = 0.0

    def priority(self, cost_s: float, num_pages: int) -> float:
        """Of a thing that was used last now. It takes at least one page."""
        return self._least + cost_s / max(1, num_pages)

    def left(self, priority: float) -> None:
        """A thing of that priority was evicted."""
        self._least = max(self._least, priority)
