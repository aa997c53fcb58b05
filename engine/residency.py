"""Which adapters are in the pool, on their way, or failed; who holds them; what may go.

Holds no tensors itself: an adapter's weights are an opaque value that the loader made off the
step loop. Invariants: an adapter with holders, or whose pages are still being filled, is never
evicted; its pages are in the pool's books from the moment it is ready until it is evicted.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import Any, Protocol

from engine.greedy_dual import GreedyDual
from engine.messages import AdapterRef, EngineError
from engine.page_pool import PagePool
from engine.speeds import Speeds

AdapterKey = tuple[str, str]
"""(tenant_id, digest): identity, never a name."""


def adapter_key(ref: AdapterRef) -> AdapterKey:
    return (ref.tenant_id, ref.digest)


class AdapterWeights(Protocol):
    """What a loader made of an adapter's files. On a CPU: `lora.weights.LoraWeights`."""

    @property
    def for_kernels(self) -> Any:
        """What `LoraSegment.weights` holds; once `is_installed`."""

    def num_pages(self, page_bytes: int) -> int:
        """Pages that it takes from the pool."""

    def install(self, pages: Sequence[int]) -> None:
        """Begin to fill `pages`, which are the adapter's from now on. Never blocks."""

    @property
    def is_installed(self) -> bool:
        """Whether a step that starts now may read the pages."""


@dataclass(frozen=True, slots=True)
class LoadResult:
    """What the loader made of `ref`: weights, or the reason why there are none."""

    ref: AdapterRef
    weights: AdapterWeights | None
    error: EngineError | None = None


class State(Enum):
    QUEUED = auto()  # wanted; other loads are under way
    LOADING = auto()
    LOADED = auto()  # on the host, waiting for pages
    READY = auto()  # has pages; `AdapterWeights.is_installed` tells whether they are filled


@dataclass(frozen=True, slots=True)
class IdleAdapter:
    """An adapter that may be evicted; the lowest `priority` first (`engine/greedy_dual.py`)."""

    ref: AdapterRef
    num_pages: int
    priority: float


@dataclass(slots=True, eq=False)
class _Entry:
    ref: AdapterRef
    state: State = State.QUEUED
    weights: AdapterWeights | None = None
    pages: list[int] = field(default_factory=list)
    num_holders: int = 0
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
    ) -> None:
        self._pool = pool
        self._page_bytes = page_bytes
        self._start_load = start_load
        self._max_loads = max_loads
        self._ageing = ageing
        self._speeds = speeds
        self._entries: dict[AdapterKey, _Entry] = {}

    def request(self, ref: AdapterRef) -> None:
        """See to it that `ref` is here or on its way. Never blocks."""
        if adapter_key(ref) not in self._entries:
            self._entries[adapter_key(ref)] = _Entry(ref)
            self._start_loads()

    def complete(self, result: LoadResult) -> None:
        """Take what the loader made. A failed load is forgotten: a later one may succeed."""
        key = adapter_key(result.ref)
        entry = self._entries[key]
        if result.weights is None:
            del self._entries[key]
        else:
            entry.weights = result.weights
            entry.state = State.LOADED
        self._start_loads()

    def num_pages_of(self, ref: AdapterRef) -> int:
        """Pages that an adapter takes; 0 while its size is unknown."""
        entry = self._entries.get(adapter_key(ref))
        return self._num_pages(entry) if entry is not None else 0

    def is_loading(self, ref: AdapterRef) -> bool:
        """Whether `ref` is wanted or being read; False also where it was evicted since."""
        entry = self._entries.get(adapter_key(ref))
        return entry is not None and entry.state in (State.QUEUED, State.LOADING)

    def idle(self) -> list[IdleAdapter]:
        """The adapters in the pool that nobody uses."""
        return [IdleAdapter(each.ref, len(each.pages), each.priority) for each in self._idle()]

    def evict(self, ref: AdapterRef) -> None:
        """Free the pages of an idle adapter."""
        entry = self._entries[adapter_key(ref)]
        assert entry.state is State.READY and entry.num_holders == 0, "evicted in use"
        self._ageing.left(entry.priority)
        self._pool.free_cold(self._pool.release(entry.pages, adapter_key(ref)))
        del self._entries[adapter_key(ref)]

    def num_missing_pages(self, ref: AdapterRef) -> int:
        """Pages to be free before `acquire`: none for an adapter that is in the pool."""
        entry = self._entries[adapter_key(ref)]
        return self._num_pages(entry) if entry.state is State.LOADED else 0

    def acquire(self, ref: AdapterRef) -> None:
        """Hold an adapter for a running sequence; takes its pages if it has none yet."""
        entry = self._entries[adapter_key(ref)]
        if entry.state is State.LOADED:
            assert entry.weights is not None
            entry.pages = self._pool.allocate(self._num_pages(entry), adapter_key(ref))
            entry.weights.install(entry.pages)
            entry.state = State.READY
            self._start_loads()
        assert entry.state is State.READY, "acquire before it was loaded"
        entry.num_holders += 1

    def release(self, ref: AdapterRef) -> None:
        entry = self._entries[adapter_key(ref)]
        assert entry.num_holders > 0, "release without acquire"
        entry.num_holders -= 1
        cost_s = len(entry.pages) * self._page_bytes / self._speeds.load_bytes_per_s
        entry.priority = self._ageing.priority(cost_s, len(entry.pages))

    def forget_unwanted(self, wanted: Collection[AdapterKey]) -> None:
        """Drop what was queued or loaded for requests that are gone and never got pages."""
        for key, entry in list(self._entries.items()):
            if entry.state in (State.QUEUED, State.LOADED) and key not in wanted:
                del self._entries[key]
        self._start_loads()

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

    def ready_keys(self) -> set[AdapterKey]:
        return {key for key, entry in self._entries.items() if entry.state is State.READY}

    def owners(self) -> Iterator[tuple[AdapterKey, list[int]]]:
        """Who owns which pages, for `PagePool.check_integrity`."""
        for key, entry in self._entries.items():
            yield key, entry.pages

    def _start_loads(self) -> None:
        """Load at most `max_loads` at a time, the tenant with the fewest under way first.

        What is loaded and has no pages yet counts too: it is memory that no page stands for.
        """
        loading = Counter(
            entry.ref.tenant_id
            for entry in self._entries.values()
            if entry.state in (State.LOADING, State.LOADED)
        )
        queued = [entry for entry in self._entries.values() if entry.state is State.QUEUED]
        while queued and loading.total() < self._max_loads:
            entry = min(queued, key=lambda entry: loading[entry.ref.tenant_id])
            queued.remove(entry)
            loading[entry.ref.tenant_id] += 1
            entry.state = State.LOADING
            self._start_load(entry.ref)

    def _idle(self) -> list[_Entry]:
        return [
            entry
            for entry in self._entries.values()
            if entry.state is State.READY and entry.num_holders == 0 and _is_installed(entry)
        ]

    def _num_pages(self, entry: _Entry) -> int:
        return entry.weights.num_pages(self._page_bytes) if entry.weights is not None else 0


def _is_installed(entry: _Entry) -> bool:
    # NOTE: pages that a copy still writes must not become somebody else's.
    return entry.weights is not None and entry.weights.is_installed
