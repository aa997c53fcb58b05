"""Blocks of K and V that were computed once, by the key of their content. Holds no tensors.

A block is here from the moment that the step which fills it has landed, while sequences hold its
page and after that, cold, until its page is wanted for something else. Whoever begins with the
same keys shares the pages without a copy: full blocks are never written again. A block that a
running sequence is about to fill is *under way*: who needs it waits for it rather than compute it
twice, so that the choices of one answer share their prompt.

Tenants' cold blocks are safe from each other up to a quota: a part of the pool, in equal shares for
those who have any. Knows nothing of requests or of adapters. Invariants: a key has one page and a
page one key; the pool's cold pages are exactly the cold blocks here.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable, Iterable, Iterator, Sequence
from itertools import takewhile

import msgspec

from engine.greedy_dual import GreedyDual
from engine.page_pool import PagePool

CacheTenant = str | None
"""Whose quota a block counts against; None: the operator's, a prefix that tenants share."""


class _Block(msgspec.Struct, frozen=True, gc=False):
    key: bytes
    page: int
    tenant_id: CacheTenant


class PrefixCache:
    """The blocks of one pool that can be used again."""

    def __init__(self, pool: PagePool, ageing: GreedyDual, protected_share: float) -> None:
        """protected_share: of the pool, where tenants' cold blocks are safe from each other."""
        self._pool = pool
        self._ageing = ageing
        self._num_protected = int(protected_share * pool.num_pages)
        self._blocks: dict[bytes, _Block] = {}
        self._by_page: dict[int, _Block] = {}
        self._cold: dict[CacheTenant, OrderedDict[int, float]] = {}
        """By tenant: page -> priority, the next to leave first; no tenant without a page."""
        self._under_way: dict[bytes, Hashable] = {}
        self.num_query_tokens = 0
        self.num_hit_tokens = 0
        self.num_evictions = 0

    def match(self, keys: Iterable[bytes]) -> list[int]:
        """The pages of the longest beginning of `keys` that is here."""
        found = map(self._blocks.get, keys)
        return [block.page for block in takewhile(lambda each: each is not None, found) if block]

    def acquire(self, pages: Iterable[int], owner: Hashable) -> None:
        """`owner` holds the pages of a match, which stay until it lets go."""
        pages = list(pages)
        self._pool.share(pages, owner)
        for page in pages:
            self._warm(self._by_page[page])

    def release(self, pages: Sequence[int], owner: Hashable, cost_s: float) -> None:
        """`owner` lets go of a block table; what nobody holds is cold if it is known, else free.

        cost_s: of computing one block again.
        """
        abandoned = self._pool.release(pages, owner)
        self._pool.free_cold([page for page in abandoned if page not in self._by_page])
        priority = self._ageing.priority(cost_s, 1)
        # The last block first: without those before it, it is of no use.
        for page in reversed(abandoned):
            if (block := self._by_page.get(page)) is not None:
                if (cold := self._cold.get(block.tenant_id)) is None:
                    cold = self._cold[block.tenant_id] = OrderedDict()
                cold[page] = priority

    def announce(self, keys: Iterable[bytes], owner: Hashable) -> None:
        """`owner` is about to compute these blocks; those that are here or under way are not."""
        for key in keys:
            if key not in self._blocks:
                self._under_way.setdefault(key, owner)

    def withdraw(self, keys: Iterable[bytes], owner: Hashable) -> None:
        """`owner` will not compute those that it has announced."""
        for key in keys:
            if self._under_way.get(key) == owner:
                del self._under_way[key]

    @property
    def has_under_way(self) -> bool:
        return bool(self._under_way)

    def is_under_way(self, key: bytes) -> bool:
        return key in self._under_way

    def insert(self, key: bytes, page: int, tenant_id: CacheTenant) -> None:
        """A held page has been filled. Where its key is known by another page, that one stays."""
        self._under_way.pop(key, None)
        if key not in self._blocks and page not in self._by_page:
            self._blocks[key] = self._by_page[page] = _Block(key, page, tenant_id)

    def forget(self, pages: Iterable[int]) -> None:
        """Held pages whose content is in doubt: nobody else gets them."""
        for page in pages:
            if (block := self._by_page.pop(page, None)) is not None:
                del self._blocks[block.key]

    def evict(self, tenant_id: CacheTenant, up_to: float, at_most: int) -> int:
        """Free the cold block of `tenant_id` that is next to leave, and those after it with no
        higher priority than `up_to`, but no more than `at_most`; how many that were."""
        cold = self._cold[tenant_id]
        pages: list[int] = []
        for page, priority in cold.items():
            if pages and (priority > up_to or len(pages) == at_most):
                break
            pages.append(page)
            self._ageing.left(priority)
        for page in pages:
            del cold[page]
        if not cold:
            del self._cold[tenant_id]
        self.forget(pages)
        self.num_evictions += len(pages)
        self._pool.free_cold(pages)
        return len(pages)

    def num_cold_by_tenant(self) -> dict[CacheTenant, int]:
        return {tenant_id: len(pages) for tenant_id, pages in self._cold.items()}

    def allowances(self, tenant_id: str) -> dict[CacheTenant, int]:
        """How many cold blocks may go where `tenant_id` needs pages: all its own, and what others
        have over the quota."""
        quota = self.quota
        found = {
            each: len(pages) - quota for each, pages in self._cold.items() if len(pages) > quota
        }
        if tenant_id in self._cold:
            found[tenant_id] = len(self._cold[tenant_id])
        return found

    def next_priority(self, tenant_id: CacheTenant) -> float:
        """That of the block that `evict` would free."""
        return next(iter(self._cold[tenant_id].values()))

    @property
    def quota(self) -> int:
        """Cold pages of a tenant that nobody else's need can take."""
        return self._num_protected // max(1, len(self._cold))

    def owner_key(self, page: int) -> bytes | None:
        """The key of what a page holds; None where it is not known."""
        block = self._by_page.get(page)
        return block.key if block is not None else None

    def cold_pages(self) -> Iterator[int]:
        """For `PagePool.check_integrity`."""
        for pages in self._cold.values():
            yield from pages

    def check_integrity(self, owners: Iterable[Hashable]) -> None:
        """Assert that keys, pages and the cold agree; owners: all who may have announced."""
        assert {each.key: each.page for each in self._by_page.values()} == {
            key: each.page for key, each in self._blocks.items()
        }, "keys and pages differ"
        for tenant_id, pages in self._cold.items():
            assert pages, "a tenant without a cold block"
            for page in pages:
                assert self._by_page[page].tenant_id == tenant_id, "another tenant's block"
        cold = set(self.cold_pages())
        for page in self._by_page:
            assert (page in cold) is (self._pool.num_holders(page) == 0), "cold, but held"
        assert not self._under_way.keys() & self._blocks.keys(), "under way, and here"
        assert set(self._under_way.values()) <= set(owners), "announced by nobody who runs"

    def _warm(self, block: _Block) -> None:
        """It is not cold any more."""
        cold = self._cold.get(block.tenant_id)
        if cold is not None and cold.pop(block.page, None) is not None and not cold:
            del self._cold[block.tenant_id]
