"""Every page is in exactly one state, and the check that says so can fail."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from engine.page_pool import PagePool

NUM_PAGES = 12
OWNERS = st.sampled_from("abcde")


class PoolMachine(RuleBasedStateMachine):
    """A pool beside plain books of who holds what, and of what is kept cold."""

    def __init__(self) -> None:
        super().__init__()
        self.freed: list[int] = []
        self.pool = PagePool(NUM_PAGES, on_free=self.freed.extend)
        self.held: dict[str, list[int]] = {}
        self.cold: set[int] = set()
        self.was_used: set[int] = set()

    @rule(owner=OWNERS, num_pages=st.integers(0, 6))
    def allocate(self, owner: str, num_pages: int) -> None:
        if not self.pool.can_allocate(num_pages):
            assert num_pages > NUM_PAGES - len(self.all_held) - len(self.cold)
            return
        pages = self.pool.allocate(num_pages, owner)
        assert len(pages) == num_pages and not set(pages) & (self.all_held | self.cold)
        self.held.setdefault(owner, []).extend(pages)
        self.was_used |= set(pages)

    @rule(owner=OWNERS, data=st.data())
    def share(self, owner: str, data: st.DataObject) -> None:
        shareable = sorted((self.all_held | self.cold) - set(self.held.get(owner, ())))
        pages = data.draw(st.lists(st.sampled_from(shareable), unique=True)) if shareable else []
        self.pool.share(pages, owner)
        self.held.setdefault(owner, []).extend(pages)
        self.cold -= set(pages)

    @rule(owner=OWNERS, data=st.data())
    def release(self, owner: str, data: st.DataObject) -> None:
        own = self.held.get(owner, [])
        pages = data.draw(st.lists(st.sampled_from(own), unique=True)) if own else []
        self.held[owner] = [page for page in own if page not in pages]
        abandoned = self.pool.release(pages, owner)
        assert abandoned == [page for page in pages if page not in self.all_held]
        self.cold |= set(abandoned)

    @precondition(lambda self: self.cold)
    @rule(data=st.data())
    def free_cold(self, data: st.DataObject) -> None:
        pages = data.draw(st.lists(st.sampled_from(sorted(self.cold)), unique=True))
        self.freed.clear()
        self.pool.free_cold(pages)
        assert self.freed == pages, "whoever poisons must hear of each page that becomes free"
        self.cold -= set(pages)

    @property
    def all_held(self) -> set[int]:
        return {page for pages in self.held.values() for page in pages}

    @invariant()
    def books_agree(self) -> None:
        self.pool.check_integrity(self.held.items(), self.cold)
        assert self.pool.num_held == len(self.all_held)
        assert self.pool.num_cold == len(self.cold)
        assert self.pool.num_free == NUM_PAGES - len(self.all_held) - len(self.cold)
        for page in range(NUM_PAGES):
            holders = sum(page in pages for pages in self.held.values())
            assert self.pool.num_holders(page) == holders


TestPool = PoolMachine.TestCase
TestPool.settings = settings(max_examples=120, deadline=None, derandomize=True)


def held_by(owner: str, num_pages: int = 2) -> tuple[PagePool, list[int]]:
    pool = PagePool(4)
    return pool, pool.allocate(num_pages, owner)


def release_anothers(pool: PagePool, pages: list[int]) -> None:
    pool.release(pages, "b")


def release_twice(pool: PagePool, pages: list[int]) -> None:
    pool.release(pages, "a")
    pool.release(pages, "a")


def share_twice(pool: PagePool, pages: list[int]) -> None:
    pool.share(pages, "a")


def share_free(pool: PagePool, pages: list[int]) -> None:
    pool.free_cold(pool.release(pages, "a"))
    pool.share(pages, "b")


def free_held(pool: PagePool, pages: list[int]) -> None:
    pool.free_cold(pages)


def allocate_too_many(pool: PagePool, pages: list[int]) -> None:
    pool.allocate(3, "b")


@pytest.mark.parametrize(
    "misuse",
    [release_anothers, release_twice, share_twice, share_free, free_held, allocate_too_many],
)
def test_misuse_is_noticed_at_once(misuse: Callable[[PagePool, list[int]], None]) -> None:
    pool, pages = held_by("a")
    with pytest.raises(AssertionError):
        misuse(pool, pages)


@pytest.mark.parametrize("fault", ["leaked", "shared", "unbooked", "cold lost", "cold and held"])
def test_check_integrity_notices(fault: str) -> None:
    pool = PagePool(6)
    owners = {"a": pool.allocate(2, "a"), "b": pool.allocate(1, "b")}
    cold = pool.release(pool.allocate(1, "c"), "c")
    pool.check_integrity(owners.items(), cold)
    if fault == "leaked":
        owners["a"].pop()
    elif fault == "shared":
        owners["b"].append(owners["a"][0])
    elif fault == "unbooked":
        owners["c"] = [owners["b"].pop()]
    elif fault == "cold lost":
        cold.clear()
    else:
        cold.append(owners["b"][0])
    with pytest.raises(AssertionError):
        pool.check_integrity(owners.items(), cold)
