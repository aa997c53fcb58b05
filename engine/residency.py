"""Which adapters are in the pool, on the host, or on their way; who holds them; what may go.

Holds no tensors itself: an adapter's weights are an opaque value that the loader made off the
step loop. How each stands is in `engine/adapter_entries.py`. What leaves the pool stays on the host
while there is room (`engine/adapter_tier.py`), and comes back without being read. Invariants: an
adapter with holders, or whose pages are still being filled, is never evicted; its pages are in the
pool's books from the moment it is ready until it is evicted; nothing here reads, hashes or
converts.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass

from engine.adapter_entries import AdapterEntries, AdapterEntry, State
from engine.adapter_key import AdapterKey, adapter_key
from engine.adapter_tier import AdapterTier
from engine.adapter_weights import AdapterWeights, HostWeights
from engine.greedy_dual import GreedyDual
from engine.messages import AdapterRef, EngineError
from engine.page_pool import PagePool
from engine.speeds import Speeds
from engine.stopwatch import Stopwatch


@dataclass(frozen=True, slots=True)
class LoadResult:
    """What the loader made of `ref`: weights, or the reason why there are none."""

    ref: AdapterRef
    weights: HostWeights | None
    error: EngineError | None = None
    seconds: float | None = None
    """That reading, checking and converting took."""


@dataclass(frozen=True, slots=True)
class IdleAdapter:
    """An adapter that may be evicted; the lowest `priority` first (`engine/greedy_dual.py`)."""

    ref: AdapterRef
    num_pages: int
    priority: float


@dataclass(frozen=True, slots=True)
class Standing:
    """An adapter as others may see it. `is_usable`: it has pages, and they are filled."""

    state: State
    num_pages: int
    num_bytes: int
    generation: int
    is_usable: bool
    is_held: bool
    num_uses: int


class Residency:
    """The adapters that this engine has or fetches."""

    def __init__(
        self,
        pool: PagePool,
        page_bytes: int,
        start_load: Callable[[AdapterRef], None],
        *,
        max_loads: int,
        ageing: GreedyDual,
        speeds: Speeds,
        tier: AdapterTier,
        watch: Stopwatch,
    ) -> None:
        """watch: of the time that the step loop spends on loading."""
        self._pool = pool
        self._page_bytes = page_bytes
        self._start_load = start_load
        self._max_loads = max_loads
        self._ageing = ageing
        self._speeds = speeds
        self._tier = tier
        self._watch = watch
        self._entries = AdapterEntries()
        self._has_evicted = False
        self.num_loads = 0
        """Adapters that were asked of the loader."""
        self.num_kept_installs = 0
        """Adapters that got pages and did not have to be read for it."""
        self.num_failed_loads = 0
        self.load_s = 0.0
        """What reading, checking and converting adapters took, all together."""
        self.num_evictions = 0
        self.num_pages = 0
        """Of the adapters in the pool."""
        self.num_installs = 0
        self.pins: dict[AdapterKey, float] = {}  # until when each stays, though nobody uses it
        self.preloading: set[AdapterKey] = set()  # wanted, though no request wants them

    @property
    def num_changes(self) -> int:
        """Of any adapter's state; from any thread, to see what is new."""
        return self._entries.num_changes

    @property
    def num_uses(self) -> int:
        """Of any adapter; from any thread, to see whether there were some."""
        return self._entries.num_uses

    def request(self, ref: AdapterRef) -> None:
        """See to it that `ref` is here, or on its way as soon as there is room. Never blocks."""
        if adapter_key(ref) in self._entries:
            self._want(ref)
            return
        with self._watch:
            self._start_loads([self._want(ref)])

    @property
    def can_load(self) -> bool:
        """Whether one more may be read now."""
        return self._entries.num_under_way < self._max_loads

    @property
    def wants_look_ahead(self) -> bool:
        """Whether `look_ahead` has anything to do."""
        return self._has_evicted or (self._entries.num_in(State.QUEUED) > 0 and self.can_load)

    def look_ahead(self, wanted: Collection[AdapterRef]) -> None:
        """Have adapters fetched before their requests are scheduled.

        wanted: by those who wait, in the order of their turns; what is evicted while its request
        waits is requested anew. Never blocks.
        """
        with self._watch:
            self._has_evicted = False
            self._start_loads(dict.fromkeys(map(self._want, wanted)))

    def complete(self, result: LoadResult) -> None:
        """Take what the loader made. A failed load is forgotten: a later one may succeed."""
        entry = self._entries[adapter_key(result.ref)]
        if result.weights is None:
            self.num_failed_loads += 1
            self._entries.remove(entry)
            return
        if result.seconds is not None:
            self.load_s += result.seconds
            self._speeds.observe_load(result.weights.num_bytes, result.seconds)
        entry.host = result.weights
        self._entries.move(entry, State.LOADED)

    def num_pages_of(self, ref: AdapterRef) -> int:
        """Pages that an adapter takes; 0 while its size is unknown."""
        entry = self._entries.find(adapter_key(ref))
        return self._num_pages(entry) if entry is not None else 0

    @property
    def awaits_any(self) -> bool:
        """Whether `is_loading` of any adapter; also where one has to be looked for on the host."""
        count = self._entries.num_in
        return any(map(count, (State.QUEUED, State.LOADING, State.KEPT)))

    def is_loading(self, ref: AdapterRef) -> bool:
        """Whether `ref` is wanted or being read; False also where it was evicted since."""
        entry = self._entries.find(adapter_key(ref))
        if entry is not None and entry.state is State.KEPT:
            self._find_kept(entry)
        return entry is not None and entry.state in (State.QUEUED, State.LOADING)

    def idle(self) -> list[IdleAdapter]:
        """The adapters in the pool that nobody uses."""
        return [
            IdleAdapter(each.ref, len(each.pages), each.priority)
            for each in self._entries.idle(self.pins)
        ]

    def evict(self, ref: AdapterRef) -> None:
        """Free the pages of an idle adapter."""
        entry = self._entries[adapter_key(ref)]
        assert entry.state is State.READY and entry.num_holders == 0, "evicted in use"
        self._ageing.left(entry.priority)
        self.num_evictions += 1
        self.num_pages -= len(entry.pages)
        self._pool.free_cold(self._pool.release(entry.pages, entry.key))
        with self._watch:
            self._forget(entry)
            self._has_evicted = True

    def num_missing_pages(self, ref: AdapterRef) -> int:
        """Pages to be free before `acquire`: none for an adapter that is in the pool."""
        entry = self._entries[adapter_key(ref)]
        return 0 if entry.state is State.READY else self._num_pages(entry)

    def acquire(self, ref: AdapterRef) -> AdapterWeights:
        """Hold an adapter for a running sequence; takes its pages if it has none yet."""
        entry = self._entries[adapter_key(ref)]
        if entry.state is not State.READY:
            with self._watch:
                self._install(entry)
        self._entries.hold(entry)
        return self.weights(ref)

    def release(self, ref: AdapterRef) -> None:
        entry = self._entries[adapter_key(ref)]
        self._entries.let_go(entry)
        entry.priority = self._priority(entry)

    def preload(self, ref: AdapterRef) -> None:
        """Want `ref` though no request does; also where it was wanted and could not be read yet."""
        self.preloading.add(adapter_key(ref))
        with self._watch:
            self._start_loads([self._want(ref)])

    def install(self, ref: AdapterRef) -> None:
        """Give an adapter its pages before anybody uses it; it is loaded, and there is room."""
        entry = self._entries[adapter_key(ref)]
        if entry.state is not State.READY:
            with self._watch:
                self._install(entry)
            entry.priority = self._priority(entry)

    def drop(self, ref: AdapterRef) -> bool:
        """Keep nothing of an adapter, nor the wish that it be here. As `unload`."""
        key = adapter_key(ref)
        self.preloading.discard(key)
        self.pins.pop(key, None)
        return self.unload(ref)

    def unload(self, ref: AdapterRef) -> bool:
        """Keep nothing of an adapter, on the host neither. False while it is held or being read."""
        key = adapter_key(ref)
        entry = self._entries.find(key)
        if entry is not None:
            if entry.state is State.LOADING or not entry.can_leave:
                return False
            if entry.state is State.READY:
                self.evict(ref)
            else:
                self._forget(entry)
        self._tier.drop(key)
        return True

    def forget(self, ref: AdapterRef) -> None:
        """Drop what was queued or loaded and never got pages, where nobody wants it any more."""
        entry = self._entries.find(adapter_key(ref))
        if entry is not None and entry.state not in (State.LOADING, State.READY):
            self._forget(entry)

    def find(self, ref: AdapterRef) -> Standing | None:
        entry = self._entries.find(adapter_key(ref))
        return None if entry is None else self._standing(entry)

    def standings(self) -> dict[AdapterKey, Standing]:
        """How every adapter stands that is here or on its way; from any thread."""
        return {entry.key: self._standing(entry) for entry in self._entries.snapshot()}

    def forget_unwanted(self, wanted: Collection[AdapterKey]) -> None:
        """Drop what was queued or loaded for requests that are gone and never got pages."""
        for entry in self._entries.snapshot():
            is_wanted = entry.key in wanted or entry.key in self.preloading
            if entry.state not in (State.LOADING, State.READY) and not is_wanted:
                self._forget(entry)

    def is_installed(self, ref: AdapterRef) -> bool:
        """Whether the pages of an adapter that a sequence holds are filled."""
        return self.weights(ref).is_installed

    def weights(self, ref: AdapterRef) -> AdapterWeights:
        """The weights of an adapter that a running sequence holds."""
        entry = self._entries[adapter_key(ref)]
        assert entry.num_holders > 0 and entry.weights is not None, "weights of an adapter not held"
        return entry.weights

    @property
    def num_idle_pages(self) -> int:
        """Pages that eviction could free at once."""
        return self._entries.num_idle_pages(self.pins)

    def ready_keys(self) -> frozenset[AdapterKey]:
        return self._entries.ready_keys()

    def num_by_state(self) -> Counter[State]:
        """How many adapters are in each state; from any thread."""
        return self._entries.num_by_state()

    def owners(self) -> Iterator[tuple[AdapterKey, list[int]]]:
        """Who owns which pages, for `PagePool.check_integrity`."""
        for entry in self._entries.snapshot():
            yield entry.key, entry.pages

    def check_integrity(self) -> None:
        """Assert that what is counted is there."""
        self._entries.check_integrity()
        num_pages = sum(len(entry.pages) for entry in self._entries.snapshot())
        assert self.num_pages == num_pages, "pages of adapters"
        idle = list(self._entries.idle(self.pins))
        assert self.num_idle_pages == sum(len(each.pages) for each in idle), "idle pages"

    def _start_loads(self, in_turn: Iterable[AdapterEntry]) -> None:
        """Load at most `max_loads` at a time, the tenant with the fewest under way first, and
        whose turn it is among equals."""
        entries, queued = self._entries, [each for each in in_turn if each.state is State.QUEUED]
        while queued and self.can_load:
            entry = min(queued, key=lambda each: entries.num_loads_of(each.ref.tenant_id))
            queued.remove(entry)
            entries.move(entry, State.LOADING)
            self.num_loads += 1
            self._start_load(entry.ref)

    def _want(self, ref: AdapterRef) -> AdapterEntry:
        """The entry of an adapter that somebody is about to use."""
        entry = self._entries.find(adapter_key(ref))
        if entry is None:
            entry = self._entries.add(ref)
            self._find_kept(entry)
        elif entry.state is State.KEPT:
            self._find_kept(entry)
        elif entry.state is State.READY and entry.num_holders == 0:
            entry.priority = self._priority(entry)
        return entry

    def _find_kept(self, entry: AdapterEntry) -> None:
        """Look on the host, which may have let it go meanwhile: then it is to be read."""
        entry.host = self._tier.find(entry.key)
        self._entries.move(entry, State.QUEUED if entry.host is None else State.KEPT)

    def _install(self, entry: AdapterEntry) -> None:
        assert entry.host is not None, "acquire before it was loaded"
        host = entry.host
        entry.pages = self._pool.allocate(self._num_pages(entry), entry.key)
        self.num_pages += len(entry.pages)
        self.num_installs += 1
        entry.generation = self.num_installs
        entry.weights = host.install(entry.pages)
        entry.host = None if host.is_copied else host
        self.num_kept_installs += entry.state is State.KEPT
        self._tier.installed(entry.key, host)
        self._entries.move(entry, State.READY)

    def _forget(self, entry: AdapterEntry) -> None:
        """Nobody here needs it. What it is on the host stays there while there is room."""
        if entry.host is not None and entry.state is not State.KEPT:
            self._tier.keep(entry.key, entry.host)
        self._entries.remove(entry)

    def _priority(self, entry: AdapterEntry) -> float:
        """Of an adapter that was used now: by what it costs to bring back."""
        num_bytes = len(entry.pages) * self._page_bytes
        is_kept = self._tier.would_keep(num_bytes)
        speed = self._speeds.link_bytes_per_s if is_kept else self._speeds.load_bytes_per_s
        return self._ageing.priority(num_bytes / speed, len(entry.pages))

    def _standing(self, entry: AdapterEntry) -> Standing:
        num_pages, is_ready = self._num_pages(entry), entry.state is State.READY
        return Standing(
            entry.state,
            num_pages,
            num_pages * self._page_bytes,
            entry.generation,
            is_usable=is_ready and entry.is_installed,
            is_held=entry.num_holders > 0,
            num_uses=entry.num_uses,
        )

    def _num_pages(self, entry: AdapterEntry) -> int:
        if entry.state is State.READY:
            return len(entry.pages)
        host = entry.host
        return host.num_pages(self._page_bytes) if host is not None else 0
