"""What a fair queue could do at best: seats, and nothing else that takes time.

Pure, in virtual time. Whoever waits of the tenant that has had least is seated next; a tenant that
comes anew starts with as much as the least of those who wait (start-time fair queueing). Knows
nothing of Tenfold. Invariant: a seat is never empty while anybody waits.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Sequence


def waits(
    moments: Sequence[Sequence[float]], *, num_seats: int, service_s: float
) -> list[list[float]]:
    """From each tenant's moments to how long each of its requests waits for a seat."""
    arrivals = sorted((at, tenant) for tenant, due in enumerate(moments) for at in due)
    free_at = [0.0] * num_seats
    had = [0.0] * len(moments)
    queues: list[deque[float]] = [deque() for _ in moments]
    found: list[list[float]] = [[] for _ in moments]
    coming = iter([*arrivals, (float("inf"), 0)])
    at, tenant = next(coming)
    while True:
        now = free_at[0]
        waiting = [each for each, queue in enumerate(queues) if queue]
        if not waiting:
            now = max(now, at)
            if now == float("inf"):
                return found
        while at <= now:
            if not queues[tenant] and waiting:
                had[tenant] = max(had[tenant], min(had[each] for each in waiting))
            queues[tenant].append(at)
            waiting = [each for each, queue in enumerate(queues) if queue]
            at, tenant = next(coming)
        served = min(waiting, key=lambda each: (had[each], queues[each][0]))
        found[served].append(now - queues[served].popleft())
        had[served] += service_s
        heapq.heapreplace(free_at, now + service_s)
