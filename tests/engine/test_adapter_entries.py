"""What a step asks of the adapters' books is counted, and the counts are what is there."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest

from engine.adapter_entries import AdapterEntries, AdapterEntry, State
from engine.messages import AdapterRef
from engine.residency import LoadResult
from tests.builders.scripted_loader import ScriptedLoader, ScriptedWeights, make_ref
from tests.engine.test_eviction import add_idle_adapter
from tests.engine.test_prefix_cache import Books

REFS = [
    AdapterRef(tenant_id=f"ten_{number % 3}", digest=f"sha256:{number}", locator=str(number))
    for number in range(9)
]


class Unlisted(dict[Any, Any]):
    """A mapping that can be asked, and not looked through."""

    def __iter__(self) -> Any:
        raise AssertionError("it was looked through")

    def values(self) -> Any:
        raise AssertionError("it was looked through")

    def items(self) -> Any:
        raise AssertionError("it was looked through")


def make_ready(entries: AdapterEntries, entry: AdapterEntry, loader: ScriptedLoader) -> None:
    """It has pages from now on, which are filled some polls later."""
    entry.pages = list(range(entry.number, entry.number + 1 + entry.number % 4))
    entry.weights = ScriptedWeights(entry.ref, len(entry.pages), loader).install(entry.pages)
    entries.move(entry, State.READY)


def one_change(entries: AdapterEntries, rng: random.Random, loader: ScriptedLoader) -> None:
    """Something that may happen to the adapter that chance picks."""
    ref = rng.choice(REFS)
    entry = entries.find((ref.tenant_id, ref.digest))
    if entry is None:
        entries.add(ref)
    elif entry.num_holders > 0 and rng.random() < 0.7:
        entries.let_go(entry)
    elif entry.state is State.READY and rng.random() < 0.7:
        entries.hold(entry)
    elif entry.num_holders == 0 and rng.random() < 0.3:
        entries.remove(entry)
    elif entry.state is State.LOADED or entry.state is State.KEPT:
        make_ready(entries, entry, loader)
    elif entry.state is not State.READY:
        entries.move(entry, rng.choice([State.QUEUED, State.LOADING, State.LOADED, State.KEPT]))


@pytest.mark.parametrize("seed", range(5))
def test_counts_are_what_a_look_at_all_entries_finds(seed: int) -> None:
    entries, rng = AdapterEntries(), random.Random(seed)
    loader, pins = ScriptedLoader(install_delay=7), [(REFS[0].tenant_id, REFS[0].digest)]
    seen: set[State] = set()
    for _ in range(400):
        one_change(entries, rng, loader)
        loader.polls += 1
        entries.check_integrity()
        seen |= {each.state for each in entries.snapshot()}
        idle = [
            each
            for each in entries.snapshot()
            if each.state is State.READY and each.can_leave and each.key not in pins
        ]
        assert list(entries.idle(pins)) == idle
        assert entries.num_idle_pages(pins) == sum(len(each.pages) for each in idle)
    assert seen == set(State)


@pytest.mark.parametrize(
    "change",
    [
        lambda entry: setattr(entry, "state", State.LOADING),
        lambda entry: setattr(entry, "num_holders", 1),
        lambda entry: entry.pages.append(99),
    ],
)
def test_a_change_past_the_books_is_found(change: Callable[[AdapterEntry], None]) -> None:
    """The control."""
    entries = AdapterEntries()
    make_ready(entries, entries.add(REFS[0]), ScriptedLoader())
    entries.check_integrity()
    change(entries.snapshot()[0])
    with pytest.raises(AssertionError):
        entries.check_integrity()


def test_while_nothing_changes_nothing_is_looked_through() -> None:
    books = Books()
    add_idle_adapter(books, "idle", 2)
    books.residency.request(make_ref("wanted"))
    books.residency.request(make_ref("queued"))
    books.residency.check_integrity()
    residency, entries = books.residency, books.residency._entries
    ready = residency.ready_keys()
    entries._by_key = Unlisted(entries._by_key)
    assert residency.ready_keys() is ready
    assert not residency.wants_look_ahead and residency.awaits_any and not residency.can_load
    assert residency.num_idle_pages == 2
    assert residency.num_by_state()[State.QUEUED] == 1
    with pytest.raises(AssertionError, match="looked through"):
        residency.standings()


def test_a_load_that_is_over_makes_room_for_the_next() -> None:
    books = Books()
    first, second = make_ref("first"), make_ref("second")
    for ref in (first, second):
        books.residency.request(ref)
    assert not books.residency.wants_look_ahead, "one is read at a time"
    books.residency.complete(LoadResult(first, None))
    assert books.residency.wants_look_ahead
    books.residency.look_ahead([second])
    assert books.residency.num_by_state()[State.LOADING] == 1
    assert not books.residency.wants_look_ahead
