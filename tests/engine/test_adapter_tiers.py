"""Disk -> host -> pages: reloads are exact and cheap, damage stays where it is, nobody waits."""

from __future__ import annotations

import gc
import random
import sys
import threading
import weakref
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, ClassVar

import pytest

from engine.adapter_loader import AdapterLoader
from engine.adapter_tier import AdapterTier
from engine.adapter_weights import AdapterWeights, HostWeights
from engine.config import EngineConfig
from engine.greedy_dual import GreedyDual
from engine.host_tier import HostTier
from engine.messages import AdapterRef, EngineRequest, TokenOutput
from engine.page_pool import PagePool
from engine.residency import LoadResult, Residency
from engine.speeds import Speeds
from engine.stopwatch import Stopwatch
from lora.store import AdapterStore
from lora.weights import LoraWeights
from tests.builders.adapter_stores import CopyingStore, damage
from tests.builders.deferring_runner import DeferringRunner
from tests.builders.engines import EngineHarness, RecordingRunner, make_request, tokens_of
from tests.builders.peft_models import VARIANTS, VOCAB_SIZE, make_adapter, make_tiny_llama
from tests.builders.scripted_loader import ScriptedLoader, ScriptedWeights, make_ref
from tests.stub_engine.clock import VirtualClock

NAMES = ["plain", "rslora_all_linear", "rank_1", "patterns"]
PAGE_BYTES = 8192
SCARCE = EngineConfig(
    pool_bytes=38 * PAGE_BYTES,
    block_size=8,
    max_num_seqs=3,
    batch_invariant=True,
    prefix_caching=False,
)
Start = Callable[..., "World"]


class World:
    """An engine with little room, its store and its adapters."""

    def __init__(self, folders: dict[str, Path], root: Path, **changes: Any) -> None:
        parts = ("runner", "loader", "prepare")
        fields = {name: changes.pop(name) for name in parts if name in changes}
        settings = {field: getattr(SCARCE, field) for field in SCARCE.__slots__}
        config = EngineConfig(**{**settings, **changes})
        self.harness = EngineHarness(
            folders["base"], root / "origin", config, seen_through=self._through(root), **fields
        )
        self.core = self.harness.core
        self.refs = {name: self.harness.publish(folders[name], f"ten_{name}") for name in NAMES}

    def _through(self, root: Path) -> Callable[[AdapterStore], AdapterStore]:
        def seen_through(store: AdapterStore) -> AdapterStore:
            self.store = CopyingStore(store, root / "copies")
            return self.store

        return seen_through

    def request(self, name: str, number: int = 0, max_tokens: int = 6) -> EngineRequest:
        """Greedy, of an adapter or of the base; the same prompt for the same number."""
        prompt = random.Random(number).choices(range(3, VOCAB_SIZE), k=9)
        return make_request(
            f"{name} {number}",
            prompt,
            adapter=self.refs.get(name),
            tenant_id=f"ten_{name}",
            max_tokens=max_tokens,
        )

    def serve(self, name: str, number: int = 0, max_tokens: int = 6) -> list[int]:
        """The tokens of one request that is alone."""
        request = self.request(name, number, max_tokens)
        return tokens_of(self.harness.run([request]))[request.request_id]

    def evict_idle(self) -> None:
        for each in self.core.residency.idle():
            self.core.residency.evict(each.ref)


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The base, and four adapters of different ranks on it."""
    root = tmp_path_factory.mktemp("tiers")
    base = make_tiny_llama(root / "base")
    adapters = {
        name: make_adapter(base, root / name, seed=seed, **VARIANTS[name])
        for seed, name in enumerate(NAMES)
    }
    return {"base": base, **adapters}


@pytest.fixture
def start(folders: dict[str, Path], tmp_path: Path) -> Iterator[Start]:
    worlds: list[World] = []

    def make(**changes: Any) -> World:
        worlds.append(World(folders, tmp_path / f"world-{len(worlds)}", **changes))
        return worlds[-1]

    yield make
    for world in worlds:
        world.harness.close()


def mixed(world: World) -> list[EngineRequest]:
    """A stream of the base, then adapters in turn."""
    others = [world.request(NAMES[n % len(NAMES)], n) for n in range(24)]
    return [world.request("base", 99, max_tokens=72), *others]


def run_in_turn(world: World) -> dict[str, list[int]]:
    """The tokens of `mixed`, three requests at a time: the base decodes beside many adapters."""
    waiting = iter(mixed(world))
    outputs: dict[str, list[TokenOutput]] = defaultdict(list)
    for _ in range(SCARCE.max_num_seqs):
        world.core.add(next(waiting))
    while world.core.has_work:
        for output in world.harness.step():
            outputs[output.request_id].append(output)
            if output.finish_reason and (following := next(waiting, None)):
                world.core.add(following)
    return tokens_of(outputs)


@pytest.mark.parametrize("runner", [RecordingRunner, DeferringRunner])
@pytest.mark.parametrize("host_bytes", [0, 1 << 20])
def test_tokens_are_those_of_solo_runs_while_adapters_are_evicted_and_reloaded(
    start: Start, host_bytes: int, runner: type[RecordingRunner]
) -> None:
    scarce = start(host_bytes=host_bytes, runner=runner)
    roomy = start(pool_bytes=1 << 23)
    got = run_in_turn(scarce)
    residency = scarce.core.residency
    if host_bytes:
        assert residency.num_loads == len(NAMES), "each was read once"
        assert residency.num_kept_installs > 3, "and came back from the host"
    else:
        assert residency.num_loads > len(NAMES) + 3, "they were read again"
        assert residency.num_kept_installs == 0
    for request in mixed(roomy):
        solo = tokens_of(roomy.harness.run([request]))
        assert got[request.request_id] == solo[request.request_id], request.request_id


class Changing:
    """Weights that are another adapter's when they come back."""

    last: LoraWeights | None = None

    def __init__(self, weights: LoraWeights) -> None:
        self._weights = weights
        self._num_installs = 0
        self.num_bytes = weights.num_bytes
        self.num_pages = weights.num_pages
        self.is_installed = True
        self.is_copied = False

    @property
    def for_kernels(self) -> LoraWeights:
        if self._num_installs > 1:
            assert Changing.last is not None
            return Changing.last
        Changing.last = self._weights
        return self._weights

    def install(self, pages: Any) -> AdapterWeights:
        self._num_installs += 1
        return self


def test_a_reload_that_is_not_the_same_adapter_would_be_seen(start: Start) -> None:
    scarce, roomy = start(prepare=Changing), start(pool_bytes=1 << 23)
    got = run_in_turn(scarce)
    want = {}
    for request in mixed(roomy):
        want |= tokens_of(roomy.harness.run([request]))
    assert got["base 99"] == want["base 99"]
    assert got != want


@pytest.mark.parametrize("is_kept", [True, False])
def test_a_reload_from_the_host_touches_neither_store_nor_files(
    start: Start, is_kept: bool
) -> None:
    world = start(host_bytes=(1 << 20) * is_kept)
    first = world.serve("plain")
    world.evict_idle()
    assert not world.core.residency.ready_keys()
    world.store.fetches.clear()
    damage(world.harness.store.fetch(world.refs["plain"].locator))
    if is_kept:
        assert world.serve("plain") == first, "it was checked when it was read"
        assert world.store.fetches == []
    else:
        assert world.serve("plain") == first, "from the copy that is sound"
        assert world.store.fetches == [(world.refs["plain"].locator, False)]


class Tracked:
    """Weights that can be counted while anybody still has them."""

    alive: ClassVar[weakref.WeakSet[Tracked]] = weakref.WeakSet()

    def __init__(self, weights: LoraWeights) -> None:
        self.for_kernels = weights
        self.num_bytes = weights.num_bytes
        self.num_pages = weights.num_pages
        self.is_installed = True
        self.is_copied = False
        Tracked.alive.add(self)

    def install(self, pages: Any) -> AdapterWeights:
        return self


def test_the_host_keeps_no_more_than_its_limit_and_the_latest_longest(start: Start) -> None:
    limit = 3 * PAGE_BYTES
    world = start(host_bytes=limit, prepare=Tracked)
    for name in ["plain", "rank_1", "patterns", "rslora_all_linear", "rank_1"]:
        world.serve(name)
        world.evict_idle()
        gc.collect()
        alive = sum(each.num_bytes for each in Tracked.alive)
        assert alive == world.core.host_tier.num_kept_bytes <= limit
    # plain left for patterns; what alone is larger than all was never kept; rank_1 came back.
    fetched = [locator for locator, _ in world.store.fetches]
    assert fetched == [
        world.refs[name].locator for name in ("plain", "rank_1", "patterns", "rslora_all_linear")
    ]


def test_a_damaged_copy_is_fetched_again_and_nobody_notices(start: Start) -> None:
    world = start(host_bytes=0)
    locator = world.refs["plain"].locator
    first = world.serve("plain")
    world.evict_idle()
    world.store.damage_copy(locator)
    world.store.fetches.clear()
    assert world.serve("plain") == first
    assert world.store.fetches == [(locator, False), (locator, True)]


@pytest.mark.parametrize("code", ["adapter_corrupt", "adapter_missing"])
def test_a_damaged_or_vanished_adapter_fails_only_its_own_requests_and_may_come_back(
    start: Start, folders: dict[str, Path], code: str
) -> None:
    world, quiet = start(), start()
    locator = world.refs["plain"].locator
    if code == "adapter_corrupt":
        damage(world.harness.store.fetch(locator))
    else:
        world.harness.store.delete(locator)
    names = ["plain", "base", "rank_1", "plain", "patterns"]
    outputs = world.harness.run(world.request(name, n) for n, name in enumerate(names))
    for number, name in enumerate(names):
        parts = outputs[f"{name} {number}"]
        if name == "plain":
            assert [part.error.code for part in parts if part.error] == [code]
            assert len(parts) == 1
        else:
            assert tokens_of({"it": parts})["it"] == quiet.serve(name, number)
    assert world.store.fetches.count((locator, False)) == 1, "one try for both requests"
    assert world.store.fetches.count((locator, True)) == 1, "and one more"
    world.harness.publish(folders["plain"], "ten_plain")
    assert world.serve("plain") == quiet.serve("plain"), "a later request tries again"


class Opened:
    """Which threads opened files below a folder: an audit hook, for as long as it is wanted."""

    def __init__(self, folder: Path) -> None:
        self._folder: str | None = str(folder)
        self.threads: set[int] = set()
        sys.addaudithook(self._see)

    def _see(self, event: str, args: tuple[Any, ...]) -> None:
        if event == "open" and self._folder and str(args[0]).startswith(self._folder):
            self.threads.add(threading.get_ident())

    def close(self) -> None:
        self._folder = None


class EagerLoader(AdapterLoader):
    """Does on the step loop what threads are for."""

    def start(self, ref: AdapterRef) -> None:
        self._run(ref)


@pytest.mark.parametrize("loader", [AdapterLoader, EagerLoader])
def test_the_step_loop_reads_hashes_and_converts_nothing(
    start: Start, tmp_path: Path, loader: type[AdapterLoader]
) -> None:
    converting: set[int] = set()

    def prepare(weights: LoraWeights) -> HostWeights:
        converting.add(threading.get_ident())
        return weights

    world = start(loader=loader, prepare=prepare, host_bytes=0)
    opened = Opened(tmp_path)
    try:
        run_in_turn(world)
    finally:
        opened.close()
    step_loop = threading.get_ident()
    at_work = (opened.threads, converting, world.store.threads)
    assert all(at_work)
    assert [step_loop in threads for threads in at_work] == [loader is EagerLoader] * 3


def test_an_adapter_that_was_evicted_while_its_request_waits_is_back_before_its_turn(
    start: Start,
) -> None:
    world = start(host_bytes=0, max_num_seqs=1)
    world.serve("plain")
    running = world.request("base", max_tokens=100)
    world.core.add(running)
    world.harness.step()
    world.core.add(world.request("plain", 1))
    world.harness.step()
    world.evict_idle()
    world.store.fetches.clear()
    ended = []
    while running.request_id not in ended:
        assert len(world.store.fetches) < 2
        ended += [each.request_id for each in world.harness.step() if each.finish_reason]
    assert world.store.fetches == [(world.refs["plain"].locator, False)]


class Books:
    """A residency whose loader only remembers."""

    def __init__(self, *, max_loads: int, host_pages: int = 0) -> None:
        self.started: list[str] = []
        self.clock = VirtualClock()
        self.loader = ScriptedLoader()
        self.residency = Residency(
            PagePool(16),
            PAGE_BYTES,
            lambda ref: self.started.append(ref.locator),
            max_loads=max_loads,
            ageing=GreedyDual(),
            speeds=Speeds(1.0, 1.0, 1.0),
            tier=AdapterTier(HostTier(host_pages * PAGE_BYTES)),
            watch=Stopwatch(self.clock),
        )

    def install(self, ref: AdapterRef) -> None:
        self.residency.complete(LoadResult(ref, ScriptedWeights(ref, 1, self.loader)))
        self.residency.acquire(ref)


def test_adapters_are_fetched_in_the_order_of_turns_and_tenants_share_the_loader() -> None:
    books = Books(max_loads=2)
    mine = [AdapterRef(tenant_id="mine", digest=str(n), locator=f"mine {n}") for n in range(4)]
    other = make_ref("other")
    for ref in (*mine, other):
        books.residency.request(ref)
    assert books.started == ["mine 0", "mine 1"]
    books.install(mine[0])
    assert books.residency.wants_look_ahead
    books.residency.look_ahead([mine[3], mine[2], other])
    assert books.started[2:] == ["other"], "of who has none under way"
    books.install(mine[1])
    books.residency.look_ahead([mine[3], mine[2]])
    assert books.started[3:] == ["mine 3"], "whose turn it is"
    assert not books.residency.wants_look_ahead, "all loaders are busy"


def test_a_kept_adapter_that_the_host_lets_go_while_its_request_waits_is_read_again() -> None:
    books = Books(max_loads=1, host_pages=1)
    waiting, passing = make_ref("waiting"), make_ref("passing")
    for ref in (waiting, passing):
        books.residency.request(ref)
        books.install(ref)
        books.residency.release(ref)
    books.residency.evict(waiting)
    books.residency.request(waiting)
    assert not books.residency.is_loading(waiting), "the host has it"
    books.residency.evict(passing)
    assert books.residency.is_loading(waiting), "it had to make room"
    books.residency.look_ahead([waiting])
    assert books.started == ["waiting", "passing", "waiting"]


def test_time_on_loading_counts_once_and_is_the_last_steps() -> None:
    clock = VirtualClock()
    watch = Stopwatch(clock)
    with watch:
        clock.sleep(2.0)
        with watch:
            clock.sleep(3.0)
    clock.sleep(7.0)
    assert watch.take() == 5.0
    assert watch.take() == 0.0


def test_the_time_that_steps_spend_on_loading_is_known(start: Start) -> None:
    world = start()
    assert world.core.max_loading_s == 0.0
    world.serve("plain")
    assert world.core.max_loading_s >= world.core.loading_s > 0.0
