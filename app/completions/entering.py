"""Requests that this process lets in, and that the queue does not know yet.

Between the door and the queue lie a reservation and a commit. Whoever comes meanwhile would find
the queue as short as the one before did, and be let in too: a crowd that comes at once would be let
in as a whole, take long to accept, and by that let in more. Knows nothing of the queue. Invariant:
each finds those who entered before it and are not enqueued yet, also those who are on their way to
the door and for whom a place is kept, and never itself; each sequence is found here until the queue
has it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
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


@dataclass(slots=True)
class _Places:
    """Of sequences that the queue does not know yet."""

    counts: Counter[str]
    tenant_id: str
    num: int

    def __post_init__(self) -> None:
        self.counts[self.tenant_id] += self.num

    def give_up(self, num: int) -> None:
        num = min(num, self.num)
        self.num -= num
        self.counts[self.tenant_id] -= num
        if self.counts[self.tenant_id] == 0:
            del self.counts[self.tenant_id]


@dataclass(frozen=True, slots=True)
class Entrance:
    """One request's. `ahead`: who entered before it."""

    ahead: Ahead
    _places: _Places

    def enqueued(self) -> None:
        """The queue has one of its sequences."""
        self._places.give_up(1)


_kept: ContextVar[_Places | None] = ContextVar("_kept", default=None)
"""Of the request at hand, before it has come to the door."""


class Entering:
    """One per API process."""

    def __init__(self) -> None:
        self._by_tenant: Counter[str] = Counter()

    @contextmanager
    def keep(self, tenant_id: str) -> Iterator[Ahead]:
        """A place is kept for the request at hand until it enters, or the block ends."""
        ahead = self._ahead_of(tenant_id)
        kept = _Places(self._by_tenant, tenant_id, 1)
        token = _kept.set(kept)
        try:
            yield ahead
        finally:
            _kept.reset(token)
            kept.give_up(1)

    @contextmanager
    def enter(self, tenant_id: str, num: int) -> Iterator[Entrance]:
        """`num` sequences of a tenant enter, until they are enqueued or the block ends."""
        kept = _kept.get()
        if kept is not None:
            kept.give_up(1)
        ahead = self._ahead_of(tenant_id)
        places = _Places(self._by_tenant, tenant_id, num)
        try:
            yield Entrance(ahead, places)
        finally:
            places.give_up(num)

    def _ahead_of(self, tenant_id: str) -> Ahead:
        counts = self._by_tenant
        return Ahead(counts.total(), counts[tenant_id], len(counts))
