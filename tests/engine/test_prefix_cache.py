"""Who shares a page finds in it what it would have computed, whatever came before."""

from __future__ import annotations

import time
from dataclasses import dataclass, field

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from engine.adapter_tier import AdapterTier
from engine.block_keys import BlockHasher
from engine.greedy_dual import GreedyDual
from engine.holdings import Holdings
from engine.host_tier import HostTier
from engine.page_pool import PagePool
from engine.prefix_cache import PrefixCache
from engine.residency import Residency
from engine.sequence import Sequence
from engine.speeds import Speeds
from engine.stopwatch import Stopwatch
from engine.swapping import Swapping
from tests.builders.engines import make_request
from tests.builders.scripted_mover import ScriptedMover

BLOCK_SIZE = 4
PREFIX = (7, 7, 7, 7, 7, 7, 7, 7, 7)


@dataclass
class Books:
    """A pool, a cache and what keeps sequences in them; `memory` is what the pages hold."""

    num_pages: int = 16
    protected_share: float = 0.25
    shared_prefixes: tuple[tuple[int, ...], ...] = ()
    memory: dict[int, tuple[object, ...]] = field(default_factory=dict)
    num_added: int = 0

    def __post_init__(self) -> None:
        self.pool = PagePool(self.num_pages, on_free=self._poison)
        speeds = Speeds(100.0, 1e6, 1e6)
        ageing = GreedyDual()
        self.residency = Residency(
            self.pool,
            4096,
            lambda ref: None,
            max_loads=1,
            ageing=ageing,
            speeds=speeds,
            tier=AdapterTier(HostTier(0)),
            watch=Stopwatch(time.perf_counter),
        )
        self.cache = PrefixCache(self.pool, ageing, self.protected_share)
        swapping = Swapping(
            self.pool,
            self.cache,
            HostTier(0),
            ScriptedMover(),
            speeds,
            preemption="recompute",
            block_size=BLOCK_SIZE,
            page_bytes=1,
        )
        self.holdings = Holdings(
            self.pool, self.residency, self.cache, swapping, speeds, BLOCK_SIZE, 10_000
        )
        self.hasher = BlockHasher(BLOCK_SIZE, "base", bytes(32), self.shared_prefixes)
        self.running: list[Sequence] = []

    def admit(self, tokens: list[int], tenant_id: str = "t", budget: int = 1000) -> Sequence | None:
        self.num_added += 1
        request = make_request(f"r{self.num_added}", tokens, tenant_id=tenant_id, max_tokens=99)
        sequence = Sequence(request, self.num_added, self.hasher.keys(request))
        if not self.holdings.acquire(sequence, budget):
            return None
        self.running.append(sequence)
        return sequence

    def launch(self, sequence: Sequence, num_tokens: int) -> None:
        """A step computes tokens: it writes what their K and V depend on, and reads all before."""
        end = sequence.num_computed_tokens + num_tokens
        for position in range(end):
            wanted = self.content(sequence, position)
            page = sequence.block_table[position // BLOCK_SIZE]
            if position < sequence.num_computed_tokens:
                assert self.memory[page][position % BLOCK_SIZE] == wanted, "another one's K and V"
            else:
                block = list(self.memory.get(page, (None,) * BLOCK_SIZE))
                block[position % BLOCK_SIZE] = wanted
                self.memory[page] = tuple(block)
        sequence.num_computed_tokens = end
        sequence.num_in_flight += 1
        sequence.num_tokens_in_flight += num_tokens

    def land(self, sequence: Sequence, *, is_well: bool = True) -> None:
        sequence.num_in_flight, sequence.num_tokens_in_flight = 0, 0
        if is_well:
            self.holdings.publish(sequence)
        else:
            self.holdings.distrust(sequence)

    def run(self, sequence: Sequence) -> None:
        self.launch(sequence, sequence.num_uncomputed_tokens)
        self.land(sequence)

    def end(self, sequence: Sequence) -> None:
        self.running.remove(sequence)
        self.holdings.release(sequence)

    def use(self, tokens: list[int], tenant_id: str = "t") -> int:
        """Run a whole prompt; how many of its tokens were cached."""
        sequence = self.admit(tokens, tenant_id)
        assert sequence is not None, "no room"
        cached = sequence.num_computed_tokens
        self.run(sequence)
        self.end(sequence)
        self.check()
        return cached

    def content(self, sequence: Sequence, position: int) -> object:
        """All that the K and V of a position depend on, and in a public block not the tenant."""
        public = sequence.block_keys is not None and (
            position // BLOCK_SIZE < sequence.block_keys.num_public
        )
        tenant = None if public else sequence.request.tenant_id
        return (tenant, tuple(sequence.token_ids[: position + 1]))

    def check(self) -> None:
        owners = [(each.owner, each.block_table) for each in self.running]
        self.pool.check_integrity([*owners, *self.residency.owners()], self.cache.cold_pages())
        self.cache.check_integrity(each.owner for each in self.running)
        for sequence in self.running:
            self.holdings.check_integrity(sequence)

    def _poison(self, pages: list[int]) -> None:
        for page in pages:
            self.memory.pop(page, None)


class CacheMachine(RuleBasedStateMachine):
    """Sequences of three tenants over few tokens, so that prefixes meet all the time."""

    @initialize(num_pages=st.integers(4, 24), share=st.sampled_from([0.0, 0.25, 1.0]))
    def start(self, num_pages: int, share: float) -> None:
        self.books = Books(num_pages, share, shared_prefixes=(PREFIX,))

    @rule(
        tenant=st.sampled_from("abc"),
        tokens=st.one_of(
            st.lists(st.integers(0, 1), min_size=1, max_size=30),
            st.builds(lambda n, rest: [*PREFIX[:n], *rest], st.integers(1, 9), st.just([1, 2, 3])),
        ),
        budget=st.integers(1, 30),
    )
    def admit(self, tenant: str, tokens: list[int], budget: int) -> None:
        books = self.books
        free = books.holdings.room.num_available_pages
        sequence = books.admit(tokens, tenant, budget)
        if sequence is None:
            assert books.running or free < -(-len(tokens) // BLOCK_SIZE)
        else:
            assert sequence.num_computed_tokens < len(tokens), "the last token is computed"

    @rule(data=st.data(), num_tokens=st.integers(1, 12))
    def launch(self, data: st.DataObject, num_tokens: int) -> None:
        ready = [each for each in self.books.running if each.num_uncomputed_tokens]
        if ready:
            sequence = data.draw(st.sampled_from(ready))
            num_tokens = min(num_tokens, sequence.num_uncomputed_tokens)
            if self.books.holdings.extend(sequence, num_tokens):
                self.books.launch(sequence, num_tokens)

    @rule(data=st.data(), is_well=st.sampled_from([True, True, True, False]))
    def land(self, data: st.DataObject, is_well: bool) -> None:
        flying = [each for each in self.books.running if each.num_in_flight]
        if flying:
            sequence = data.draw(st.sampled_from(flying))
            if not is_well:
                written = sequence.block_table[sequence.num_known_blocks :]
                self.books.memory.update(dict.fromkeys(written, ("broken",) * BLOCK_SIZE))
            self.books.land(sequence, is_well=is_well)
            if not is_well:
                self.books.end(sequence)

    @rule(data=st.data(), token=st.integers(0, 1))
    def sample(self, data: st.DataObject, token: int) -> None:
        complete = [
            each
            for each in self.books.running
            if not each.num_uncomputed_tokens and not each.num_in_flight
        ]
        if complete:
            data.draw(st.sampled_from(complete)).token_ids.append(token)

    @rule(data=st.data())
    def end(self, data: st.DataObject) -> None:
        landed = [each for each in self.books.running if not each.num_in_flight]
        if landed:
            self.books.end(data.draw(st.sampled_from(landed)))

    @invariant()
    def books_agree(self) -> None:
        if hasattr(self, "books"):
            self.books.check()


TestCache = CacheMachine.TestCase
TestCache.settings = settings(
    max_examples=150, stateful_step_count=60, deadline=None, derandomize=True
)


def test_the_same_prompt_again_is_cached_but_for_the_block_of_its_last_token() -> None:
    books = Books()
    prompt = list(range(10))
    assert [books.use(prompt), books.use(prompt)] == [0, 8]
    assert [books.use(prompt[:8]), books.use(prompt[:9])] == [4, 8]
    assert (books.cache.num_query_tokens, books.cache.num_hit_tokens) == (37, 20)


def test_another_tenant_never_hits_and_a_prefix_that_the_operator_shares_does() -> None:
    books = Books(shared_prefixes=(PREFIX,))
    private, public = [1] * 9, [*PREFIX[:8], 5, 5, 5, 5, 5]
    assert [books.use(private, tenant) for tenant in ("a", "b", "a")] == [0, 0, 8]
    assert [books.use(public, tenant) for tenant in ("a", "b", "a")] == [0, 8, 12]


def test_a_sequences_own_answer_is_cached_too() -> None:
    books = Books()
    sequence = books.admit([1, 2, 3])
    assert sequence is not None
    for token in range(10):
        assert books.holdings.extend(sequence, sequence.num_uncomputed_tokens)
        books.run(sequence)
        sequence.token_ids.append(token)
    books.end(sequence)
    assert books.use([1, 2, 3, *range(10), 8, 8]) == 12


def test_a_block_can_be_shared_only_once_the_step_that_fills_it_has_landed() -> None:
    books = Books()
    first = books.admit([1] * 9)
    assert first is not None
    books.launch(first, 9)
    early = books.admit([1] * 9)
    assert early is not None and early.num_computed_tokens == 0
    books.land(first)
    late = books.admit([1] * 9)
    assert late is not None and late.block_table[:2] == first.block_table[:2]
    assert late.num_computed_tokens == 8
    books.check()


def test_what_a_running_sequence_is_about_to_compute_is_waited_for() -> None:
    books = Books()
    first = books.admit([1] * 9)
    assert first is not None
    same, other, short = (
        Sequence(request, 0, books.hasher.keys(request))
        for request in (
            make_request("same", [1] * 9, tenant_id="t"),
            make_request("other", [2] * 9, tenant_id="t"),
            make_request("short", [1] * 4, tenant_id="t"),
        )
    )
    waits = books.holdings.awaits_prefix
    assert [waits(each) for each in (same, other, short)] == [True, False, False]
    books.run(first)
    assert not waits(same)
    second = books.admit([3] * 9)
    assert second is not None
    (follower,) = (
        Sequence(request, 0, books.hasher.keys(request))
        for request in [make_request("follower", [3] * 9, tenant_id="t")]
    )
    assert waits(follower)
    books.end(second)
    assert not waits(follower), "whoever gave up computes nothing"


def test_blocks_of_a_sequence_whose_step_broke_are_shared_with_nobody() -> None:
    books = Books()
    assert books.use([1] * 9) == 0
    broken = books.admit([1] * 17)
    assert broken is not None and broken.num_computed_tokens == 8
    books.launch(broken, 9)
    books.land(broken, is_well=False)
    books.end(broken)
    assert books.use([1] * 17) == 0, "nor what it had shared: that may be what is wrong"
    assert books.pool.num_cold == 4 and books.pool.num_free == 12


def test_the_end_of_a_prefix_leaves_before_its_beginning() -> None:
    books = Books(num_pages=8)
    books.use(list(range(25)), "a")
    assert books.pool.num_cold == 6
    books.use([1] * 17, "a")
    assert books.use(list(range(25)), "a") == 12, "three of its six blocks had to go"


class Forgetful(BlockHasher):
    """Negative control: what a tenant or an adapter adds to the key is left out."""

    def root(self, tenant_id: str, adapter: object) -> bytes:
        return self._root(bytes(32), "base")


@pytest.mark.parametrize("kind", [BlockHasher, Forgetful])
def test_the_machine_sees_a_key_without_the_tenant(kind: type[BlockHasher]) -> None:
    books = Books()
    books.hasher = kind(BLOCK_SIZE, "base", bytes(32))
    books.use([1] * 9, "a")
    if kind is BlockHasher:
        assert books.use([1] * 9, "b") == 0
    else:
        with pytest.raises(AssertionError, match="another one's K and V"):
            books.use([1] * 9, "b")
