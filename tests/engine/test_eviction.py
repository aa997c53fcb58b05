"""What is cold leaves by what it costs to bring back, and never below another tenant's quota."""

from __future__ import annotations

import msgspec

from engine.greedy_dual import GreedyDual
from engine.residency import LoadResult
from engine.speeds import Speeds
from tests.builders.scripted_loader import ScriptedLoader, ScriptedWeights, make_ref
from tests.engine.test_prefix_cache import BLOCK_SIZE, Books


def prompt(start: int, num_blocks: int) -> list[int]:
    """Fills `num_blocks` pages, and one more that is not kept."""
    return [start + i for i in range(num_blocks * BLOCK_SIZE + 1)]


def add_idle_adapter(books: Books, name: str, num_pages: int) -> None:
    ref = make_ref(name)
    weights = ScriptedWeights(ref, num_pages, ScriptedLoader())
    books.residency.request(ref)
    books.residency.complete(LoadResult(ref, weights))
    books.residency.acquire(ref)
    books.residency.release(ref)
    weights.installed_at = 0


def resident(books: Books) -> set[str]:
    return {tenant_id for tenant_id, _ in books.residency.ready_keys()}


def test_greedy_dual_keeps_the_dear_longer_but_not_for_ever() -> None:
    ageing = GreedyDual()
    dear, cheap = ageing.priority(10.0, 1), ageing.priority(1.0, 1)
    assert cheap < dear and ageing.priority(10.0, 20) < cheap, "by page"
    for _ in range(9):
        ageing.left(cheap)
        cheap = ageing.priority(1.0, 1)
        assert cheap <= dear
    ageing.left(cheap)
    assert ageing.priority(1.0, 1) > dear, "what was not used meanwhile is the next to go"
    ageing.left(0.0)
    assert ageing.priority(1.0, 1) > dear, "and the clock never goes back"


def test_a_flood_by_one_tenant_does_not_evict_another_below_its_quota() -> None:
    books = Books(num_pages=40, protected_share=0.5)
    victim = prompt(0, 9)
    books.use(victim, "victim")
    for number in range(50):
        books.use(prompt(1000 * number, 15), "flood")
    assert books.cache.quota == 10
    assert books.use(victim, "victim") == 9 * BLOCK_SIZE


def test_without_a_quota_the_same_flood_evicts_everything() -> None:
    books = Books(num_pages=40, protected_share=0.0)
    victim = prompt(0, 9)
    books.use(victim, "victim")
    for number in range(50):
        books.use(prompt(1000 * number, 15), "flood")
    assert books.use(victim, "victim") == 0


def test_a_flood_of_running_sequences_stops_at_the_quota_too() -> None:
    books = Books(num_pages=40, protected_share=0.5)
    victim = prompt(0, 12)
    books.use(victim, "victim")
    flood = [books.admit(prompt(1000 * number, 5), "flood") for number in range(10)]
    running = [sequence for sequence in flood if sequence is not None]
    assert len(running) == 4 and not all(flood), "some have to wait"
    assert not books.holdings.extend(running[0], 400)
    assert books.cache.num_cold_by_tenant()["victim"] >= 12
    for sequence in running[1:]:
        books.end(sequence)
    books.run(running[0])
    assert books.holdings.extend(running[0], 17 * BLOCK_SIZE)
    assert books.use(victim, "victim") == 12 * BLOCK_SIZE
    books.check()


def test_who_is_alone_takes_all_that_is_cold_so_that_something_always_runs() -> None:
    books = Books(num_pages=40, protected_share=1.0)
    books.use(prompt(0, 30), "victim")
    add_idle_adapter(books, "idle", 5)
    sequence = books.admit(prompt(1000, 39), "big")
    assert sequence is not None and len(sequence.block_table) == 40
    books.check()


def test_quotas_are_equal_shares_of_what_is_protected() -> None:
    books = Books(num_pages=80, protected_share=0.5)
    assert books.cache.quota == 40
    for number, tenant_id in enumerate("abcd"):
        books.use(prompt(1000 * number, 3), tenant_id)
        assert books.cache.quota == 40 // (number + 1)


def test_of_an_adapter_and_a_block_the_one_that_is_cheaper_to_bring_back_leaves() -> None:
    for prefill_tokens_per_s, stays in [(1e9, True), (1e-3, False)]:
        books = Books(num_pages=20)
        books.holdings._speeds.prefill_tokens_per_s = prefill_tokens_per_s
        add_idle_adapter(books, "a", 4)
        books.use(prompt(0, 8))
        assert books.admit(prompt(1000, 9)) is not None
        assert (resident(books) == {"ten_a"}) is stays
        assert books.pool.num_cold == (6 if stays else 8)
        books.check()


def test_an_adapter_about_to_be_used_stays_whatever_certificate_its_ref_has() -> None:
    books = Books(num_pages=20)
    add_idle_adapter(books, "a", 4)
    add_idle_adapter(books, "b", 4)
    keep = msgspec.structs.replace(make_ref("a"), certificate="a newer one")
    room = books.holdings.room
    assert room.make(16, "t", keep=keep) and resident(books) == {"ten_a"}
    assert not room.make(17, "t", keep=keep), "its pages are not counted either"
    assert room.make(17, "t") and resident(books) == set(), "and without that it goes"


def test_nothing_is_evicted_where_even_all_of_it_would_not_do() -> None:
    books = Books(num_pages=20, protected_share=0.0)
    running = books.admit(prompt(0, 9))
    assert running is not None
    books.use(prompt(500, 3))
    add_idle_adapter(books, "a", 2)
    assert books.admit(prompt(1000, 10)) is None
    assert books.pool.num_cold == 3 and resident(books) == {"ten_a"}
    assert books.admit(prompt(1000, 9)) is not None
    assert books.pool.num_free == books.pool.num_cold == 0 and resident(books) == set()


def test_an_adapter_that_is_used_or_about_to_be_used_stays() -> None:
    books = Books(num_pages=10)
    add_idle_adapter(books, "kept", 4)
    add_idle_adapter(books, "idle", 4)
    assert books.holdings.room.make(6, "t", keep=make_ref("kept"))
    assert resident(books) == {"ten_kept"}
    books.residency.acquire(make_ref("kept"))
    assert not books.holdings.room.make(7, "t", force=True)
    assert resident(books) == {"ten_kept"}


def test_speeds_follow_what_is_measured_and_stay_positive() -> None:
    speeds = Speeds(100.0, 100.0, 100.0)
    for _ in range(100):
        speeds.observe_prefill(50, 0.1)
        speeds.observe_load(0, 1.0)
        speeds.observe_link(10, 0.0)
    assert round(speeds.prefill_tokens_per_s) == 500
    assert speeds.load_bytes_per_s == 100.0
    assert speeds.link_bytes_per_s > 0
