"""Requests that this process lets in, and that the queue does not know yet.

Between the door and the queue lie a reservation and a commit. Whoever comes meanwhile would find
the queue as short as the one before did, and be let in too: a crowd that comes at once would be let
in as a whole, take long to accept, and by that let in more. Knows nothing of the queue. Invariant:
each finds those who entered before it and are not enqueued yet, and never itself.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace

from engine.transport.load import QueueLoad


@dataclass(frozen=True, slots=True)
class Ahead:
    """Who was entering when one came: sequences of all tenants and its own; how many tenants."""

    num: int
    num_own: int
    num_tenants: int

    def and_queued(self, load: QueueLoad) -> QueueLoad:
        """The queue as it is once those who are entering are in it."""
        return replace(
            load,
            num_queued=load.num_queued + self.num,
            num_own=load.num_own + self.num_own,
            num_tenants=max(load.num_tenants, self.num_tenants),
        )


class Entering:
    """One per API process."""

    def __init__(self) -> None:
        self._by_tenant: Counter[str] = Counter()

    def ahead_of(self, tenant_id: str) -> Ahead:
        """Who is entering while a request of this tenant comes."""
        counts = self._by_tenant
        return Ahead(counts.total(), counts[tenant_id], len(counts))

    @contextmanager
    def enter(self, tenant_id: str, num: int) -> Iterator[Ahead]:
        """`num` sequences of a tenant enter, until the block ends."""
        counts, ahead = self._by_tenant, self.ahead_of(tenant_id)
        counts[tenant_id] += num
        try:
            yield ahead
        finally:
            counts[tenant_id] -= num
            if counts[tenant_id] == 0:
                del counts[tenant_id]
