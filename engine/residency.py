"""Which adapters are in the pool, on the host, or on their way; who holds them; what may go.

Holds no tensors itself: an adapter's weights are an opaque value that the loader made off the
step loop. What leaves the pool stays on the host while there is room (`engine/adapter_tier.py`),
and comes back without being read. Invariants: an adapter with holders, or whose pages are still
being filled, is never evicted; its pages are in the pool's books from the moment it is ready until
it is evicted; nothing here reads, hashes or converts.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass, field
from enum import Enum, auto

from engine.adapter_tier import AdapterTier
from engine.adapter_weights import AdapterWeights, HostWeights
from engine.greedy_dual import GreedyDual
from engine.messages import AdapterRef, EngineError
from engine.page_pool import PagePool
from engine.speeds import Speeds
from engine.stopwatch import Stopwatch

AdapterKey = tuple[str, str]
"""(tenant_id, digest): identity, never a name."""


def adapter_key(ref: AdapterRef) -> AdapterKey:
    return (ref.tenant_id, ref.digest)


@dataclass(frozen=True, slots=True)
class LoadResult:
    """What the loader made of `ref`: weights, or the reason why there are none."""

    ref: AdapterRef
    weights: HostWeights | None
    error: EngineError | None = None
    seconds: float | None = None
    """That reading, checking and converting took."""


class State(Enum):
    QUEUED = auto()  # wanted; other loads are under way
    LOADING = auto()
    LOADED = auto()  # was read, waits for pages
    KEPT = auto()  # was in the pool before, waits for pages; the host may still let it go
    READY = auto()  # has pages; `AdapterWeights.is_installed` tells whether they are filled


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


@dataclass(slots=True, eq=False)
class _Entry:
    ref: AdapterRef
    state: State = State.QUEUED
    host: HostWeights | None = None
    """From being loaded to being ready; after that only where its pages are no copy."""
    weights: AdapterWeights | None = None
    pages: list[int] = field(default_factory=list)
    num_holders: int = 0
    generation: int = 0
    priority: float = 0.0


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
        self._entries: dict[AdapterKey, _Entry] = {}
        self._ready: frozenset[AdapterKey] | None = None  # asked every step, and changes rarely
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
        # Of any adapter's state; counted when it is made, since others read it to see what is new.
        self.num_changes = 0
        self.num_installs = 0
        self.pins: dict[AdapterKey, float] = {}  # until when each stays, though nobody uses it
        self.preloading: set[AdapterKey] = set()  # wanted, though no request wants them

    def request(self, ref: AdapterRef) -> None:
        """See to it that `ref` is here, or on its way as soon as there is room. Never blocks."""
        if adapter_key(ref) in self._entries:
            self._want(ref)
            return
        with self._watch:
            self._start_loads([self._want(ref)])

    @property
    def wants_look_ahead(self) -> bool:
        """Whether `look_ahead` has anything to do."""
        return self._has_evicted or (
            any(entry.state is State.QUEUED for entry in self._entries.values())
            and self._loading().total() < self._max_loads
        )

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
        key = adapter_key(result.ref)
        entry = self._entries[key]
        if result.weights is None:
            self.num_failed_loads += 1
            del self._entries[key]
            self.num_changes += 1
            return
        if result.seconds is not None:
            self.load_s += result.seconds
            self._speeds.observe_load(result.weights.num_bytes, result.seconds)
        entry.host = result.weights
        entry.state = State.LOADED
        self.num_changes += 1

    def num_pages_of(self, ref: AdapterRef) -> int:
        """Pages that an adapter takes; 0 while its size is unknown."""
        entry = self._entries.get(adapter_key(ref))
        return self._num_pages(entry) if entry is not None else 0

    def is_loading(self, ref: AdapterRef) -> bool:
        """Whether `ref` is wanted or being read; False also where it was evicted since."""
        entry = self._entries.get(adapter_key(ref))
        if entry is not None and entry.state is State.KEPT:
            self._find_kept(entry)
        return entry is not None and entry.state in (State.QUEUED, State.LOADING)

    def idle(self) -> list[IdleAdapter]:
        """The adapters in the pool that nobody uses."""
        return [IdleAdapter(each.ref, len(each.pages), each.priority) for each in self._idle()]

    def evict(self, ref: AdapterRef) -> None:
        """Free the pages of an idle adapter."""
        entry = self._entries[adapter_key(ref)]
        assert entry.state is State.READY and entry.num_holders == 0, "evicted in use"
        self._ready = None
        self._ageing.left(entry.priority)
        self.num_evictions += 1
        self.num_pages -= len(entry.pages)
        self._pool.free_cold(self._pool.release(entry.pages, adapter_key(ref)))
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
        entry.num_holders += 1
        return self.weights(ref)

    def release(self, ref: AdapterRef) -> None:
        entry = self._entries[adapter_key(ref)]
        assert entry.num_holders > 0, "release without acquire"
        entry.num_holders -= 1
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
        """Keep nothing of an adapter, on the host neither. False while it is held or being read."""
        key = adapter_key(ref)
        self.preloading.discard(key)
        self.pins.pop(key, None)
        entry = self._entries.get(key)
        if entry is not None:
            if entry.state is State.LOADING or not _can_leave(entry):
                return False
            if entry.state is State.READY:
                self.evict(ref)
            else:
                self._forget(entry)
        self._tier.drop(key)
        return True

    def forget(self, ref: AdapterRef) -> None:
        """Drop what was queued or loaded and never got pages, where nobody wants it any more."""
        entry = self._entries.get(adapter_key(ref))
        if entry is not None and entry.state not in (State.LOADING, State.READY):
            self._forget(entry)

    def find(self, ref: AdapterRef) -> Standing | None:
        entry = self._entries.get(adapter_key(ref))
        return None if entry is None else self._standing(entry)

    def standings(self) -> dict[AdapterKey, Standing]:
        """How every adapter stands that is here or on its way; from any thread."""
        return {key: self._standing(entry) for key, entry in list(self._entries.items())}

    def forget_unwanted(self, wanted: Collection[AdapterKey]) -> None:
        """Drop what was queued or loaded for requests that are gone and never got pages."""
        for key, entry in list(self._entries.items()):
            is_wanted = key in wanted or key in self.preloading
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
        return sum(len(entry.pages) for entry in self._idle())

    def ready_keys(self) -> frozenset[AdapterKey]:
        if self._ready is None:
            ready = (key for key, each in self._entries.items() if each.state is State.READY)
            self._ready = frozenset(ready)
        return self._ready

    def num_by_state(self) -> Counter[State]:
        """How many adapters are in each state; from any thread."""
        return Counter(entry.state for entry in list(self._entries.values()))

    def owners(self) -> Iterator[tuple[AdapterKey, list[int]]]:
        """Who owns which pages, for `PagePool.check_integrity`."""
        for key, entry in self._entries.items():
            yield key, entry.pages

    def _start_loads(self, in_turn: Iterable[_Entry]) -> None:
        """Load at most `max_loads` at a time, the tenant with the fewest under way first, and
        whose turn it is among equals."""
        queued = [entry for entry in in_turn if entry.state is State.QUEUED]
        if not queued:
            return
        loading = self._loading()
        while queued and loading.total() < self._max_loads:
            entry = min(queued, key=lambda entry: loading[entry.ref.tenant_id])
            queued.remove(entry)
            loading[entry.ref.tenant_id] += 1
            entry.state = State.LOADING
            self.num_changes += 1
            self.num_loads += 1
            self._start_load(entry.ref)

    def _loading(self) -> Counter[str]:
        """Loads under way, by tenant.

        What was read and has no pages yet counts too: it is memory that nothing stands for.
        """
        return Counter(
            entry.ref.tenant_id
            for entry in self._entries.values()
            if entry.state in (State.LOADING, State.LOADED)
        )

    def _want(self, ref: AdapterRef) -> _Entry:
        """The entry of an adapter that somebody is about to use."""
        key = adapter_key(ref)
        if (entry := self._entries.get(key)) is None:
            entry = self._entries[key] = _Entry(ref)
            self.num_changes += 1
            self._find_kept(entry)
        elif entry.state is State.KEPT:
            self._find_kept(entry)
        elif entry.state is State.READY and entry.num_holders == 0:
            entry.priority = self._priority(entry)
        return entry

    def _find_kept(self, entry: _Entry) -> None:
        """Look on the host, which may have let it go meanwhile: then it is to be read."""
        entry.host = self._tier.find(adapter_key(entry.ref))
        entry.state = State.QUEUED if entry.host is None else State.KEPT

    def _install(self, entry: _Entry) -> None:
        assert entry.host is not None, "acquire before it was loaded"
        key, host = adapter_key(entry.ref), entry.host
        entry.pages = self._pool.allocate(self._num_pages(entry), key)
        self.num_pages += len(entry.pages)
        self.num_installs += 1
        entry.generation = self.num_installs
        entry.weights = host.install(entry.pages)
        entry.host = None if host.is_copied else host
        self.num_kept_installs += entry.state is State.KEPT
        self._tier.installed(key, host)
        entry.state = State.READY
        self._ready = None
        self.num_changes += 1

    def _forget(self, entry: _Entry) -> None:
        """Nobody here needs it. What it is on the host stays there while there is room."""
        key = adapter_key(entry.ref)
        if entry.host is not None and entry.state is not State.KEPT:
            self._tier.keep(key, entry.host)
        del self._entries[key]
        self.num_changes += 1

    def _priority(self, entry: _Entry) -> float:
        """Of an adapter that was used now: by what it costs to bring back."""
        num_bytes = len(entry.pages) * self._page_bytes
        is_kept = self._tier.would_keep(num_bytes)
        speed = self._speeds.link_bytes_per_s if is_kept else self._speeds.load_bytes_per_s
        return self._ageing.priority(num_bytes / speed, len(entry.pages))

    def _idle(self) -> list[_Entry]:
        return [
            entry
            for key, entry in self._entries.items()
            if entry.state is State.READY and _can_leave(entry) and key not in self.pins
        ]

    def _standing(self, entry: _Entry) -> Standing:
        num_pages, is_ready = self._num_pages(entry), entry.state is State.READY
        return Standing(
            entry.state,
            num_pages,
            num_pages * self._page_bytes,
            entry.generation,
            is_usable=is_ready and _is_installed(entry),
            is_held=entry.num_holders > 0,
        )

    def _num_pages(self, entry: _Entry) -> int:
        if entry.state is State.READY:
            return len(entry.pages)
        host = entry.host
        return host.num_pages(self._page_bytes) if host is not None else 0


def _is_installed(entry: _Entry) -> bool:
    # NOTE: pages that a copy still writes must not become somebody else's.
    return entry.weights is not None and entry.weights.is_installed


def _can_leave(entry: _Entry) -> bool:
    return entry.state is not State.READY or (entry.num_holders == 0 and _is_installed(entry))
