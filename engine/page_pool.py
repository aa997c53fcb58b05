"""The one pool of pages that KV blocks and adapters share. Holds no tensors.

Invariant: every page is free or has exactly one owner, and `check_integrity` proves it.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable


class PagePool:
    """Page ids `0 .. num_pages - 1`, handed out and taken back with their owner's name."""

    def __init__(self, num_pages: int) -> None:
        self.num_pages = num_pages
        self._free = list(range(num_pages - 1, -1, -1))
        self._owner: dict[int, Hashable] = {}

    @property
    def num_free(self) -> int:
        return len(self._free)

    def can_allocate(self, num_pages: int) -> bool:
        return num_pages <= len(self._free)

    def allocate(self, num_pages: int, owner: Hashable) -> list[int]:
        """`num_pages` page ids, now `owner`'s. The caller has asked `can_allocate`."""
        assert self.can_allocate(num_pages), "allocate without can_allocate"
        pages = [self._free.pop() for _ in range(num_pages)]
        self._owner.update(dict.fromkeys(pages, owner))
        return pages

    def free(self, pages: Iterable[int], owner: Hashable) -> None:
        """Give `pages` back; each must be `owner`'s."""
        for page in pages:
            found = self._owner.pop(page, None)
            assert found == owner, f"page {page} is {found!r}'s, not {owner!r}'s"
            self._free.append(page)

    def check_integrity(self, owners: Iterable[tuple[Hashable, Iterable[int]]]) -> None:
        """Assert that `owners` (name, its pages) and the free list cover the pool exactly once."""
        seen = dict.fromkeys(self._free, "free")
        assert len(seen) == len(self._free), "a page is free twice"
        for owner, pages in owners:
            for page in pages:
                assert page not in seen, f"page {page} is {owner!r}'s and {seen[page]!r}'s"
                assert self._owner.get(page) == owner, f"page {page} is not booked on {owner!r}"
                seen[page] = str(owner)
        assert len(seen) == self.num_pages, f"{self.num_pages - len(seen)} pages are nobody's"
