"""Who leaves the pool when pages are wanted: the cold thing that is cheapest to bring back.

Cold are blocks of prefixes that nobody runs, and adapters that nobody uses; `engine/greedy_dual.py`
orders them. Knows nothing of who wants the pages but the tenant. Invariants: what is held never
leaves; a tenant's need takes nothing of what the quota leaves to another, unless it is forced;
nothing leaves where even all of it would not be enough.
"""

from __future__ import annotations

from heapq import heapify, heappop, heappush

from engine.messages import AdapterRef
from engine.page_pool import PagePool
from engine.prefix_cache import CacheTenant, PrefixCache
from engine.residency import Residency


class Room:
    """Makes room in one pool."""

    def __init__(self, pool: PagePool, cache: PrefixCache, residency: Residency) -> None:
        self._pool = pool
        self._cache = cache
        self._residency = residency

    @property
    def num_available_pages(self) -> int:
        """Free now, or as soon as they are wanted."""
        return self._pool.num_free + self._pool.num_cold + self._residency.num_idle_pages

    def can_make(
        self, needed: int, tenant_id: str, *, keep: AdapterRef | None = None, force: bool = False
    ) -> bool:
        """Whether `make` would."""
        missing = needed - self._pool.num_free
        if missing <= 0:
            return True
        missing -= sum(each.num_pages for each in self._residency.idle() if each.ref != keep)
        if force:
            return missing <= self._pool.num_cold
        return missing <= sum(self._allowances(tenant_id).values())

    def make(
        self, needed: int, tenant_id: str, *, keep: AdapterRef | None = None, force: bool = False
    ) -> bool:
        """Evict for `tenant_id` until `needed` pages are free; False where that cannot be.

        keep: an idle adapter that is about to be used. force: take what is protected where nothing
        else is enough; for who is alone, and would otherwise never run.
        """
        if needed <= self._pool.num_free:
            return True
        if self.can_make(needed, tenant_id, keep=keep):
            allowances = self._allowances(tenant_id)
        elif force and self.can_make(needed, tenant_id, keep=keep, force=True):
            allowances = {each: self._cache.num_cold(each) for each in self._cache.cold_tenants()}
        else:
            return False
        candidates: list[tuple[float, int, CacheTenant | AdapterRef]] = [
            (self._cache.next_priority(tenant), order, tenant)
            for order, (tenant, num_pages) in enumerate(allowances.items())
            if num_pages > 0
        ]
        candidates += [
            (each.priority, len(allowances) + order, each.ref)
            for order, each in enumerate(self._residency.idle())
            if each.ref != keep
        ]
        heapify(candidates)
        while not self._pool.can_allocate(needed):
            _, order, candidate = heappop(candidates)
            if isinstance(candidate, AdapterRef):
                self._residency.evict(candidate)
                continue
            self._cache.evict(candidate)
            allowances[candidate] -= 1
            if allowances[candidate] > 0:
                heappush(candidates, (self._cache.next_priority(candidate), order, candidate))
        return True

    def _allowances(self, tenant_id: str) -> dict[CacheTenant, int]:
        """How many of each tenant's cold blocks may go: one's own, and what is over the quota."""
        cache, quota = self._cache, self._cache.quota
        return {
            tenant: cache.num_cold(tenant)
            if tenant == tenant_id
            else max(0, cache.num_cold(tenant) - quota)
            for tenant in cache.cold_tenants()
        }
