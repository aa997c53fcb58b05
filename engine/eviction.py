"""Who leaves the pool when pages are wanted: the cold thing that is cheapest to bring back.

Cold are blocks of prefixes that nobody runs, and adapters that nobody uses; `engine/greedy_dual.py`
orders them. Knows nothing of who wants the pages but the tenant. Invariants: what is held never
leaves; a tenant's need takes nothing of what the quota leaves to another, unless it is forced;
nothing leaves where even all of it would not be enough.
"""

from __future__ import annotations

from collections.abc import Iterable
from heapq import heapify, heappop, heappush
from math import inf

from engine.adapter_key import adapter_key
from engine.messages import AdapterRef
from engine.page_pool import PagePool
from engine.prefix_cache import CacheTenant, PrefixCache
from engine.residency import IdleAdapter, Residency

MAX_AHEAD = 64
LEAST_SHARE = 256
"""Blocks leave in batches of the first, or of a page in so many: choosing costs time."""


class Room:
    """Makes room in one pool."""

    def __init__(self, pool: PagePool, cache: PrefixCache, residency: Residency) -> None:
        self._pool = pool
        self._cache = cache
        self._residency = residency
        self._num_ahead = min(MAX_AHEAD, pool.num_pages // LEAST_SHARE)

    @property
    def num_available_pages(self) -> int:
        """Free now, or as soon as they are wanted."""
        return self._pool.num_free + self._pool.num_cold + self._residency.num_idle_pages

    def can_make(
        self, needed: int, tenant_id: str, *, keep: AdapterRef | None = None, force: bool = False
    ) -> bool:
        """Whether `make` would."""
        if needed <= self._pool.num_free:
            return True
        return self.num_lacking(needed, tenant_id, keep=keep, force=force) <= 0

    def num_lacking(
        self, needed: int, tenant_id: str, *, keep: AdapterRef | None = None, force: bool = False
    ) -> int:
        """Pages that would have to become free before `make` can; below 1 where it can now."""
        cold = self._pool.num_cold if force else sum(self._cache.allowances(tenant_id).values())
        return needed - self._pool.num_free - _num_pages(self._idle(keep)) - cold

    def make(
        self, needed: int, tenant_id: str, *, keep: AdapterRef | None = None, force: bool = False
    ) -> bool:
        """Evict for `tenant_id` until `needed` pages are free; False where that cannot be.

        keep: an idle adapter that is about to be used. force: take what is protected where nothing
        else is enough; for who is alone, and would otherwise never run.
        """
        if needed <= self._pool.num_free:
            return True
        ahead, idle = self._num_ahead, self._idle(keep)
        allowances = self._cache.allowances(tenant_id)
        lacking = needed - self._pool.num_free - _num_pages(idle)
        if lacking > sum(allowances.values()):
            if not force or lacking > self._pool.num_cold:
                return False
            allowances, ahead = self._cache.num_cold_by_tenant(), 0
        candidates: list[tuple[float, int, CacheTenant | AdapterRef]] = [
            (self._cache.next_priority(tenant), order, tenant)
            for order, tenant in enumerate(allowances)
        ]
        candidates += [
            (each.priority, len(allowances) + order, each.ref) for order, each in enumerate(idle)
        ]
        heapify(candidates)
        while candidates and not self._pool.can_allocate(needed + ahead):
            _, order, candidate = heappop(candidates)
            if isinstance(candidate, AdapterRef):
                if self._pool.can_allocate(needed):
                    break
                self._residency.evict(candidate)
                continue
            up_to = candidates[0][0] if candidates else inf
            at_most = min(allowances[candidate], needed + ahead - self._pool.num_free)
            allowances[candidate] -= self._cache.evict(candidate, up_to, at_most)
            if allowances[candidate] > 0:
                heappush(candidates, (self._cache.next_priority(candidate), order, candidate))
        return True

    def _idle(self, keep: AdapterRef | None) -> list[IdleAdapter]:
        """All but `keep`, by key: of one adapter, requests may bring different certificates."""
        idle = self._residency.idle()
        if keep is None:
            return idle
        key = adapter_key(keep)
        return [each for each in idle if adapter_key(each.ref) != key]


def _num_pages(idle: Iterable[IdleAdapter]) -> int:
    return sum(each.num_pages for each in idle)
