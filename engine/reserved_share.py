"""Who has had less than the share of the service that is reserved for it.

All tenants' service, in prompt tokens, is a clock. A tenant with the share r has a tag: the time by
that clock at which more is due to it. Each token that it gets moves the tag by 1 / r, so the tag
lags behind the clock exactly while the tenant gets less than r (the reservation tags of mClock:
Gulati et al. 2010, with service in the place of seconds). What it gets while it is due is paid by
the share, and not charged to its counter: so a tenant gets its share or its turn, whichever is
more, and never owes for the one in the other.

Knows nothing of sequences or of turns. Invariants: a tag is never behind the clock for time in
which its tenant had nothing that waits, and ahead by no more than `MEMORY_TOKENS` of its own
service and a charge: nobody saves up, nor pays back more than that of what was free to be had.
While all shares together are at most 1, whoever is due first goes first, and all get theirs
(`app.plans` sees to the sum).
"""

from __future__ import annotations

from collections.abc import Container
from math import inf

MEMORY_TOKENS = 4096.0
"""Without any, what a tenant gets in its turn would come on top of its share."""


class ReservedShares:
    """The tags of one order. `lua/prelude.lua` of the queue keeps the same for all engines."""

    def __init__(self) -> None:
        self._served = 0.0
        self._shares: dict[str, float] = {}
        self._due_at: dict[str, float] = {}

    def put(self, tenant_id: str, share: float) -> None:
        """From now on the tenant has this share, 0 to 1."""
        if share > 0:
            self._shares[tenant_id] = share
            self._due_at.setdefault(tenant_id, self._served)
        elif self._shares.pop(tenant_id, None) is not None:
            del self._due_at[tenant_id]

    def enter(self, tenant_id: str) -> None:
        """The tenant has something that waits again: nothing is due for the time before."""
        if tenant_id in self._shares:
            self._due_at[tenant_id] = max(self._due_at[tenant_id], self._served)

    def is_due(self, tenant_id: str) -> bool:
        return self._due_at.get(tenant_id, inf) < self._served

    def due_at(self, tenant_id: str) -> float:
        """The lower, the sooner; of tenants that have a share."""
        return self._due_at[tenant_id]

    def charge(self, tenant_id: str, cost: float) -> bool:
        """The tenant got service, in prompt tokens. Returns whether its share pays for it."""
        is_due = self.is_due(tenant_id)
        if (share := self._shares.get(tenant_id)) is not None:
            begin = min(self._due_at[tenant_id], self._served + MEMORY_TOKENS / share)
            self._due_at[tenant_id] = begin + cost / share
        self._served += cost
        return is_due

    def keep(self, tenant_ids: Container[str]) -> None:
        """Forget all other tenants."""
        for tenant_id in [each for each in self._shares if each not in tenant_ids]:
            del self._shares[tenant_id], self._due_at[tenant_id]
