"""Every page has exactly one owner, and the check that says so can fail."""

from __future__ import annotations

import random

import pytest

from engine.page_pool import PagePool


def test_pages_are_handed_out_once_and_come_back() -> None:
    pool, rng, held = PagePool(50), random.Random(1), {}
    for number in range(500):
        wanted = rng.randrange(0, 9)
        if pool.can_allocate(wanted):
            held[f"owner {number}"] = pool.allocate(wanted, f"owner {number}")
        else:
            owner = rng.choice(sorted(held))
            pool.free(held.pop(owner), owner)
        pool.check_integrity(held.items())
    for owner, pages in held.items():
        pool.free(pages, owner)
    assert pool.num_free == 50


def test_a_page_cannot_be_freed_by_another_owner_or_twice() -> None:
    pool = PagePool(4)
    pages = pool.allocate(2, "a")
    with pytest.raises(AssertionError, match=r"page . is 'a'"):
        pool.free(pages[:1], "b")
    pool = PagePool(4)
    pages = pool.allocate(2, "a")
    pool.free(pages, "a")
    with pytest.raises(AssertionError, match="is None"):
        pool.free(pages, "a")


@pytest.mark.parametrize("fault", ["leaked", "shared", "unbooked"])
def test_check_integrity_notices(fault: str) -> None:
    pool = PagePool(4)
    owners = {"a": pool.allocate(2, "a"), "b": pool.allocate(1, "b")}
    pool.check_integrity(owners.items())
    if fault == "leaked":
        owners["a"].pop()
    elif fault == "shared":
        owners["b"].append(owners["a"][0])
    else:
        owners["c"] = [owners["b"].pop()]
    with pytest.raises(AssertionError):
        pool.check_integrity(owners.items())
