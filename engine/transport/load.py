"""How long a request would wait in the queue, from what waits there now and how fast it goes.

Pure: knows nothing of Redis. Invariant: a tenant that asks for less than its share is not told to
expect the queue that others have made.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class QueueLoad:
    """Requests that wait: all, and one tenant's; `requests_per_s` is what the engines take together
    while there is a queue, None where that was not seen lately."""

    num_queued: int
    num_tenants: int
    num_own: int
    requests_per_s: float | None

    def expected_wait_s(
        self, *, weight: float = 1.0, is_flex: bool = False, reserved_share: float = 0.0
    ) -> float | None:
        """Until a new request of this tenant would be leased; None where the pace is unknown.

        Between tenants of equal weight each takes its turn, so before it go its tenant's own
        requests and as many of each other tenant's, or what leaves it its reserved share; what is
        flex comes after all that waits.
        """
        if self.requests_per_s is None or self.requests_per_s <= 0:
            return None
        num_before = float(self.num_queued)
        if not is_flex:
            num_others = self.num_tenants - (self.num_own > 0)
            num_turns = (self.num_own + 1) * (1 + num_others / weight) - 1
            if reserved_share > 0:
                num_turns = min(num_turns, (self.num_own + 1) / reserved_share - 1)
            num_before = min(num_before, num_turns)
        return num_before / self.requests_per_s
