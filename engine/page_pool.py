"""The one pool of pages that KV blocks and adapters share. Holds no tensors.

A page is *free*, *held* by one or more named owners, or *cold*: nobody runs on it, but its content
is kept for whoever wants it next (`engine/prefix_cache.py` knows what is in it). Knows nothing of
what pages hold. Invariant: every page is in exactly one of these states, and `check_integrity`
proves it against the books of those who hold and keep.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence

OnFree = Callable[[Sequence[int]], None]


class PagePool:
    """Page ids `0 .. num_pages - 1`, handed out, shared and taken back with their owners' names.

    on_free: told of pages that become free, before anybody else can have them: for a debug mode
    that poisons what they hold.
    """

    def __init__(self, num_pages: int, on_free: OnFree | None = None) -> None:
        self.num_pages = num_pages
        self._on_free = on_free
        self._free = list(range(num_pages - 1, -1, -1))
        self._cold: set[int] = set()
        self._holders: dict[int, set[Hashable]] = {}

    @property
    def num_free(self) -> int:
        return len(self._free)

    @property
    def num_cold(self) -> int:
        return len(self._cold)

    @property
    def num_held(self) -> int:
        return len(self._holders)

    def can_allocate(self, num_pages: int) -> bool:
        return num_pages <= len(self._free)

    def num_holders(self, page: int) -> int:
        """0 for a page that is free or cold."""
        return len(self._holders.get(page, ()))

    def allocate(self, num_pages: int, owner: Hashable) -> list[int]:
        """`num_pages` free pages, now held by `owner`. The caller has asked `can_allocate`."""
        assert self.can_allocate(num_pages), "allocate without can_allocate"
        pages = [self._free.pop() for _ in range(num_pages)]
        for page in pages:
            self._holders[page] = {owner}
        return pages

    def share(self, pages: Iterable[int], owner: Hashable) -> None:
        """One more holder of pages that are held or cold: whatever they hold is now theirs too."""
        for page in pages:
            if page in self._cold:
                self._cold.remove(page)
                self._holders[page] = {owner}
            else:
                holders = self._holders.get(page)
                assert holders is not None, f"page {page} is free and cannot be shared"
                assert owner not in holders, f"page {page} is {owner!r}'s already"
                holders.add(owner)

    def release(self, pages: Iterable[int], owner: Hashable) -> list[int]:
        """`owner` lets go; returns, in order, the pages that nobody holds now.

        Those are cold: the caller gives the ones whose content it does not keep to `free_cold`.
        """
        abandoned = []
        for page in pages:
            holders = self._holders.get(page)
            assert holders and owner in holders, f"page {page} is {holders}'s, not {owner!r}'s"
            if len(holders) > 1:
                holders.remove(owner)
            else:
                del self._holders[page]
                abandoned.append(page)
        self._cold.update(abandoned)
        return abandoned

    def free_cold(self, pages: Sequence[int]) -> None:
        """Forget what cold pages hold."""
        assert self._cold.issuperset(pages), f"not all of {pages} are cold"
        self._cold.difference_update(pages)
        if pages and self._on_free is not None:
            self._on_free(pages)
        self._free += pages

    def check_integrity(
        self, owners: Iterable[tuple[Hashable, Iterable[int]]], cold: Iterable[int] = ()
    ) -> None:
        """Assert that the books cover the pool exactly once.

        owners: each name once, with the pages that it holds. cold: the pages that somebody keeps
        for their content.
        """
        held: dict[int, set[Hashable]] = {}
        for owner, pages in owners:
            for page in pages:
                holders = held.setdefault(page, set())
                assert owner not in holders, f"page {page} is {owner!r}'s twice"
                holders.add(owner)
        for page in held.keys() | self._holders.keys():
            found, booked = held.get(page), self._holders.get(page)
            assert found == booked, f"page {page} is held by {found}, and booked on {booked}"
        kept = list(cold)
        assert len(kept) == len(set(kept)), "a cold page is kept twice"
        assert set(kept) == self._cold, f"cold and kept differ: {set(kept) ^ self._cold}"
        everything = [*self._free, *self._cold, *self._holders]
        assert len(set(everything)) == len(everything), "a page is in two states"
        assert len(everything) == self.num_pages, "a page is in no state"
