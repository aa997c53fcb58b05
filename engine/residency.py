"""Which adapters are in the pool, on their way, or failed; who holds them; what may go.

Holds no tensors itself: an adapter's weights are an opaque value that the loader made off the
step loop. Invariants: an adapter with holders is never evicted; its pages are in the pool's books
from the moment it is ready until it is evicted.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field
from enum import Enum, auto

from engine.messages import AdapterRef, EngineError
from engine.page_pool import PagePool
from lora.layout import num_pages
from lora.weights import LoraWeights

AdapterKey = tuple[str, str]
"""(tenant_id, digest): identity, never a name."""


def adapter_key(ref: AdapterRef) -> AdapterKey:
    return (ref.tenant_id, ref.digest)


@dataclass(frozen=True, slots=True)
class LoadResult:
    """What the loader made of `ref`: weights, or the reason why there are none."""

    ref: AdapterRef
    weights: LoraWeights | None
    error: EngineError | None = None


class State(Enum):
    LOADING = auto()
    LOADED = auto()  # on the host, waiting for pages
    READY = auto()


@dataclass(slots=True, eq=False)
class _Entry:
    ref: AdapterRef
    state: State = State.LOADING
    weights: LoraWeights | None = None
    pages: list[int] = field(default_factory=list)
    num_holders: int = 0
    last_used: int = 0


class Residency:
    """The adapters that this engine has or fetches."""

    def __init__(
        self, pool: PagePool, page_bytes: int, start_load: Callable[[AdapterRef], None]
    ) -> None:
        self._pool = pool
        self._page_bytes = page_bytes
        self._start_load = start_load
        self._entries: dict[AdapterKey, _Entry] = {}
        self._clock = 0

    def request(self, ref: AdapterRef) -> None:
        """Begin to load `ref` unless it is here or on its way. Never blocks."""
        if adapter_key(ref) not in self._entries:
            self._entries[adapter_key(ref)] = _Entry(ref)
            self._start_load(ref)

    def complete(self, result: LoadResult) -> None:
        """Take what the loader made. A failed load is forgotten: a later one may succeed."""
        key = adapter_key(result.ref)
        entry = self._entries[key]
        if result.weights is None:
            del self._entries[key]
            return
        entry.weights = result.weights
        entry.state = State.LOADED

    def num_pages_of(self, ref: AdapterRef) -> int:
        """Pages that a loaded adapter takes; 0 while its size is unknown."""
        entry = self._entries.get(adapter_key(ref))
        return self._num_pages(entry) if entry is not None else 0

    def is_loading(self, ref: AdapterRef) -> bool:
        return self._entries[adapter_key(ref)].state is State.LOADING

    def make_ready(self, ref: AdapterRef) -> bool:
        """Give a loaded adapter its pages, evicting idle ones; False while too few are free."""
        entry = self._entries[adapter_key(ref)]
        if entry.state is State.LOADED:
            needed = self._num_pages(entry)
            if not self.make_room(needed):
                return False
            entry.pages = self._pool.allocate(needed, adapter_key(ref))
            entry.state = State.READY
        return True

    def make_room(self, needed: int, keep: Collection[AdapterKey] = ()) -> bool:
        """Evict idle adapters, longest unused first, until `needed` pages are free."""
        for entry in sorted(self._idle(keep), key=lambda entry: entry.last_used):
            if self._pool.can_allocate(needed):
                break
            self._evict(entry)
        return self._pool.can_allocate(needed)

    def acquire(self, ref: AdapterRef) -> None:
        """Hold a ready adapter for a running sequence."""
        entry = self._entries[adapter_key(ref)]
        assert entry.state is State.READY, "acquire before make_ready"
        entry.num_holders += 1

    def release(self, ref: AdapterRef) -> None:
        entry = self._entries[adapter_key(ref)]
        assert entry.num_holders > 0, "release without acquire"
        entry.num_holders -= 1
        self._clock += 1
        entry.last_used = self._clock

    def forget_unwanted(self, wanted: Collection[AdapterKey]) -> None:
        """Drop what was loaded for requests that are gone and never got pages."""
        for key, entry in list(self._entries.items()):
            if entry.state is State.LOADED and key not in wanted:
                del self._entries[key]

    def weights(self, ref: AdapterRef) -> LoraWeights:
        """The weights of an adapter that a running sequence holds."""
        entry = self._entries[adapter_key(ref)]
        assert entry.num_holders > 0 and entry.weights is not None, "weights of an adapter not held"
        return entry.weights

    @property
    def num_idle_pages(self) -> int:
        """Pages that eviction could free at once."""
        return sum(len(entry.pages) for entry in self._idle(()))

    def ready_keys(self) -> set[AdapterKey]:
        return {key for key, entry in self._entries.items() if entry.state is State.READY}

    def owners(self) -> Iterator[tuple[AdapterKey, list[int]]]:
        """Who owns which pages, for `PagePool.check_integrity`."""
        for key, entry in self._entries.items():
            yield key, entry.pages

    def _idle(self, keep: Collection[AdapterKey]) -> list[_Entry]:
        return [
            entry
            for key, entry in self._entries.items()
            if entry.state is State.READY and entry.num_holders == 0 and key not in keep
        ]

    def _evict(self, entry: _Entry) -> None:
        key = adapter_key(entry.ref)
        self._pool.free(entry.pages, key)
        del self._entries[key]

    def _num_pages(self, entry: _Entry) -> int:
        if entry.weights is None:
            return 0
        return num_pages(entry.weights.num_bytes, self._page_bytes)
