"""Requests that this process lets in, and that the queue does not know yet.

Between the door and the queue lie a reservation and a commit. Whoever comes meanwhile would find
the queue as short as the one before did, and be let in too: a crowd that comes at once would be let
in as a whole, take long to accept, and by that let in more. Knows nothing of the queue. Invariant:
each finds those who entered before it and are not enqueued yet, also those who are on their way to
the door and for whom a place is kept, and never itself.
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
class _Kept:
    """A place for one sequence of a request that has not come to the door."""

    counts: Counter[str]
    tenant_id: str
    is_held: bool = True

    def give_up(self) -> None:
        if self.is_held:
            self.is_held = False
            _take_off(self.counts, self.tenant_id, 1)


_kept: ContextVar[_Kept | None] = ContextVar("_kept", default=None)


class Entering:
    """One per API process."""

    def __init__(self) -> None:
        self._by_tenant: Counter[str] = Counter()

    @contextmanager
    def keep(self, tenant_id: str) -> Iterator[Ahead]:
        """A place is kept for the request at hand until it enters, or the block ends."""
        ahead = self._ahead_of(tenant_id)
        self._by_tenant[tenant_id] += 1
        kept = _Kept(self._by_tenant, tenant_id)
        token = _kept.set(kept)
        try:
            yield ahead
        finally:
            _kept.reset(token)
            kept.give_up()

    @contextmanager
    def enter(self, tenant_id: str, num: int) -> Iterator[Ahead]:
        """`num` sequences of a tenant enter, until the block ends."""
        kept = _kept.get()
        if kept is not None:
            kept.give_up()
        ahead = self._ahead_of(tenant_id)
        self._by_tenant[tenant_id] += num
        try:
            yield ahead
        finally:
            _take_off(self._by_tenant, tenant_id, num)

    def _ahead_of(self, tenant_id: str) -> Ahead:
        counts = self._by_tenant
        return Ahead(counts.total(), counts[tenant_id], len(counts))


def _take_off(counts: Counter[str], tenant_id: str, num: int) -> None:
    counts[tenant_id] -= num
    if counts[tenant_id] == 0:
        del counts[tenant_id]
