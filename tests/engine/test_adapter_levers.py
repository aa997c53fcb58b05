"""A lever that cannot be pulled is answered, and holds nothing up."""

from __future__ import annotations

import pytest

from engine.adapter_entries import State
from engine.adapter_key import adapter_key
from engine.adapter_levers import (
    PRELOAD_TIMEOUT_S,
    SECONDS_PER_LOOK,
    SECONDS_PER_USE,
    AdapterLevers,
)
from engine.messages import AdapterCommand, AdapterRef, Lever, Outcome
from engine.residency import LoadResult
from tests.builders.scripted_loader import ScriptedLoader, ScriptedWeights, make_ref
from tests.engine.test_prefix_cache import Books

NUM_PAGES = 8


class Engine:
    """Levers on a pool that nobody runs on; adapters are read when the test says so."""

    def __init__(self) -> None:
        self.books = Books(num_pages=NUM_PAGES)
        self.now = 0.0
        self.levers = AdapterLevers(
            "engine",
            self.books.residency,
            self.books.holdings.room,
            self.books.pool,
            lambda key: [],
            admits=lambda ref: ref.certificate != "forged",
            clock=lambda: self.now,
            now=lambda: self.now,
        )

    def preload(self, ref: AdapterRef) -> None:
        self.levers.take(AdapterCommand(command_id=ref.digest, lever=Lever.PRELOAD, adapter=ref))

    def read(self, ref: AdapterRef, num_pages: int) -> None:
        self.books.residency.complete(
            LoadResult(ref, ScriptedWeights(ref, num_pages, ScriptedLoader()))
        )

    def outcomes(self) -> list[tuple[Outcome, str | None]]:
        self.levers.settle()
        return [
            (each.outcome, None if each.error is None else each.error.code)
            for each in self.levers.take_acks()
        ]

    def state(self, ref: AdapterRef) -> State | None:
        standing = self.books.residency.find(ref)
        return None if standing is None else standing.state


@pytest.fixture
def engine() -> Engine:
    return Engine()


def test_preloads_that_failed_keep_no_place_among_the_loads(engine: Engine) -> None:
    refs = [make_ref(str(number)) for number in range(20)]
    for ref in refs:
        engine.preload(ref)
    loading = [ref for ref in refs if engine.state(ref) is State.LOADING]
    assert 0 < len(loading) < len(refs), "only so many at once"
    for ref in loading:
        engine.read(ref, NUM_PAGES + 1)
    assert engine.outcomes() == [(Outcome.FAILED, "adapter_too_large")] * len(loading)
    assert {engine.state(ref) for ref in loading} == {None}
    engine.levers.settle()
    assert any(engine.state(ref) is State.LOADING for ref in refs), "the next are being read"


def test_a_preload_without_room_is_answered_when_its_time_is_over(engine: Engine) -> None:
    assert not engine.levers.watches_clock
    engine.preload(make_ref("a"))
    assert engine.levers.watches_clock, "an idle engine has to look at the time"
    assert engine.outcomes() == []
    engine.now = PRELOAD_TIMEOUT_S
    assert engine.outcomes() == [(Outcome.FAILED, "no_room")]
    assert not engine.levers.watches_clock


def test_an_adapter_without_a_certificate_is_not_preloaded(engine: Engine) -> None:
    forged = AdapterRef(tenant_id="t", digest="sha256:f", locator="f", certificate="forged")
    engine.preload(forged)
    assert engine.outcomes() == [(Outcome.FAILED, "adapter_uncertified")]
    assert engine.state(forged) is None


def test_what_is_unloaded_to_be_loaded_anew_stays_pinned(engine: Engine) -> None:
    """The control is `drop`, which lets go of the pin too."""
    ref, residency = make_ref("a"), engine.books.residency
    engine.preload(ref)
    engine.read(ref, 1)
    residency.pins[adapter_key(ref)] = 100.0
    assert residency.unload(ref) and engine.state(ref) is None
    assert adapter_key(ref) in residency.pins
    assert residency.drop(ref) and not residency.pins


def test_when_an_adapter_was_used_last_is_told_to_a_minute_and_not_with_each_use(
    engine: Engine,
) -> None:
    used, idle = make_ref("a"), make_ref("b")
    for ref in (used, idle):
        engine.preload(ref)
        engine.read(ref, 1)
        assert engine.outcomes() == [] and engine.outcomes() == [(Outcome.READY, None)]
    residency, told = engine.books.residency, set()
    last_use_s = 100
    for second in range(3 * int(SECONDS_PER_USE)):
        engine.now = float(second)
        if second <= last_use_s:
            residency.acquire(used)
            residency.release(used)
        reports = engine.levers.report()
        told.add(reports[adapter_key(used)].last_used_s)
        assert reports[adapter_key(idle)].last_used_s is None, "the control"
    assert len(told) <= 3, "once a minute, however often it is used"
    last = reports[adapter_key(used)].last_used_s
    assert last is not None and abs(last - last_use_s) <= SECONDS_PER_USE
    engine.now += 10 * SECONDS_PER_LOOK
    assert engine.levers.report() is reports, "nothing is used, and nothing is looked at"
