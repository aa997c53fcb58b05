"""The books of the adapters that are here or on their way: how each stands, and how many do.

They are asked at every step. So what is counted is counted where it changes, and nothing is looked
through while nothing does. Knows nothing of loading, of the pool or of whose turn it is.
Invariants: only `add`, `move`, `hold`, `let_go` and `remove` change a state or a number of holders;
every count is what a look at all entries would find (`check_integrity`); only what is ready is
held, and its pages stay what they were when it became so.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from enum import Enum, auto

from engine.adapter_key import AdapterKey, adapter_key
from engine.adapter_weights import AdapterWeights, HostWeights
from engine.messages import AdapterRef


class State(Enum):
    QUEUED = auto()  # wanted; other loads are under way
    LOADING = auto()
    LOADED = auto()  # was read, waits for pages
    KEPT = auto()  # was in the pool before, waits for pages; the host may still let it go
    READY = auto()  # has pages; `AdapterWeights.is_installed` tells whether they are filled


UNDER_WAY = (State.LOADING, State.LOADED)
"""What was read and has no pages yet counts too: it is memory that nothing stands for."""


@dataclass(slots=True, eq=False)
class AdapterEntry:
    """One adapter. `state` and `num_holders` are changed by `AdapterEntries` alone."""

    ref: AdapterRef
    number: int
    """In the order in which they were wanted first."""
    state: State = State.QUEUED
    num_holders: int = 0
    num_uses: int = 0
    """Counted when one begins, and when it ends."""
    host: HostWeights | None = None
    """From being loaded to being ready; after that only where its pages are no copy."""
    weights: AdapterWeights | None = None
    pages: list[int] = field(default_factory=list)
    generation: int = 0
    priority: float = 0.0

    @property
    def key(self) -> AdapterKey:
        return adapter_key(self.ref)

    @property
    def is_installed(self) -> bool:
        # NOTE: pages that a copy still writes must not become somebody else's.
        return self.weights is not None and self.weights.is_installed

    @property
    def can_leave(self) -> bool:
        return self.state is not State.READY or (self.num_holders == 0 and self.is_installed)


class AdapterEntries:
    """Entries by key. Changed by the step loop alone; `snapshot` and counts are for any thread."""

    def __init__(self) -> None:
        self._by_key: dict[AdapterKey, AdapterEntry] = {}
        self._num_added = 0
        self._num_in_state = dict.fromkeys(State, 0)
        self._loads: dict[str, int] = {}
        """By tenant, where there are any: those of `UNDER_WAY`."""
        self._unheld: dict[AdapterKey, AdapterEntry] = {}
        """Those that are ready, and nobody uses them."""
        self._filling: dict[AdapterKey, AdapterEntry] = {}
        """Those that are ready, but for a copy that was not over when it was asked last."""
        self._num_unheld_pages = 0
        self._ready: frozenset[AdapterKey] | None = None
        self.num_under_way = 0
        self.num_changes = 0
        """Of any state; counted when it is made, since others read it to see what is new."""
        self.num_uses = 0
        """Of any adapter."""

    def __contains__(self, key: AdapterKey) -> bool:
        return key in self._by_key

    def __getitem__(self, key: AdapterKey) -> AdapterEntry:
        return self._by_key[key]

    def find(self, key: AdapterKey) -> AdapterEntry | None:
        return self._by_key.get(key)

    def snapshot(self) -> list[AdapterEntry]:
        return list(self._by_key.values())

    def add(self, ref: AdapterRef) -> AdapterEntry:
        """A new one, which is queued."""
        entry = AdapterEntry(ref, self._num_added)
        assert entry.key not in self._by_key, "it is here already"
        self._num_added += 1
        self._by_key[entry.key] = entry
        self._enter(entry)
        self.num_changes += 1
        return entry

    def move(self, entry: AdapterEntry, state: State) -> None:
        """Change its state; one that becomes ready has its pages and weights by now."""
        if state is not entry.state:
            self._leave(entry)
            entry.state = state
            self._enter(entry)
            self.num_changes += 1

    def remove(self, entry: AdapterEntry) -> None:
        assert entry.num_holders == 0, "it is in use"
        self._leave(entry)
        del self._by_key[entry.key]
        self.num_changes += 1

    def hold(self, entry: AdapterEntry) -> None:
        assert entry.state is State.READY, "only what has pages can be held"
        if entry.num_holders == 0:
            self._unset_unheld(entry)
        entry.num_holders += 1
        self._count_use(entry)

    def let_go(self, entry: AdapterEntry) -> None:
        assert entry.num_holders > 0, "release without acquire"
        entry.num_holders -= 1
        self._count_use(entry)
        if entry.num_holders == 0:
            self._set_unheld(entry)

    def _count_use(self, entry: AdapterEntry) -> None:
        entry.num_uses += 1
        self.num_uses += 1

    def num_in(self, state: State) -> int:
        return self._num_in_state[state]

    def num_by_state(self) -> Counter[State]:
        return Counter(self._num_in_state)

    def num_loads_of(self, tenant_id: str) -> int:
        """A tenant's adapters of `UNDER_WAY`."""
        return self._loads.get(tenant_id, 0)

    def ready_keys(self) -> frozenset[AdapterKey]:
        if self._ready is None:
            ready = (key for key, each in self._by_key.items() if each.state is State.READY)
            self._ready = frozenset(ready)
        return self._ready

    def idle(self, pins: Iterable[AdapterKey]) -> Iterator[AdapterEntry]:
        """Those whose pages nobody uses, but for `pins`; in the order of their numbers."""
        pinned = frozenset(pins)
        for key, entry in sorted(self._unheld.items(), key=_number):
            if key not in pinned and entry.is_installed:
                yield entry

    def num_idle_pages(self, pins: Iterable[AdapterKey]) -> int:
        """All pages of `idle`."""
        for key in [key for key, entry in self._filling.items() if entry.is_installed]:
            del self._filling[key]
        staying = {*pins, *self._filling}
        return self._num_unheld_pages - sum(
            len(self._unheld[key].pages) for key in staying if key in self._unheld
        )

    def check_integrity(self) -> None:
        """Assert that every count is what a look at all entries finds."""
        entries = self._by_key.values()
        found = Counter(each.state for each in entries)
        assert self._num_in_state == {state: found[state] for state in State}, "states"
        loads = Counter(each.ref.tenant_id for each in entries if each.state in UNDER_WAY)
        assert self._loads == loads and self.num_under_way == loads.total(), "loads"
        ready = {key: each for key, each in self._by_key.items() if each.state is State.READY}
        assert self.ready_keys() == ready.keys(), "what is ready"
        unheld = {key: each for key, each in ready.items() if each.num_holders == 0}
        assert self._unheld == unheld, "what nobody holds"
        num_pages = sum(len(each.pages) for each in unheld.values())
        assert self._num_unheld_pages == num_pages, "pages that nobody holds"
        filling = {key for key, each in ready.items() if not each.is_installed}
        assert filling <= self._filling.keys() <= ready.keys(), "what is being filled"
        assert all(each.num_holders == 0 for each in entries if each.state is not State.READY)

    def _enter(self, entry: AdapterEntry) -> None:
        self._num_in_state[entry.state] += 1
        if entry.state in UNDER_WAY:
            self.num_under_way += 1
            self._loads[entry.ref.tenant_id] = self.num_loads_of(entry.ref.tenant_id) + 1
        elif entry.state is State.READY:
            self._ready = None
            if entry.num_holders == 0:
                self._set_unheld(entry)
            if not entry.is_installed:
                self._filling[entry.key] = entry

    def _leave(self, entry: AdapterEntry) -> None:
        self._num_in_state[entry.state] -= 1
        if entry.state in UNDER_WAY:
            self.num_under_way -= 1
            self._loads[entry.ref.tenant_id] -= 1
            if self._loads[entry.ref.tenant_id] == 0:
                del self._loads[entry.ref.tenant_id]
        elif entry.state is State.READY:
            self._ready = None
            self._filling.pop(entry.key, None)
            if entry.num_holders == 0:
                self._unset_unheld(entry)

    def _set_unheld(self, entry: AdapterEntry) -> None:
        self._unheld[entry.key] = entry
        self._num_unheld_pages += len(entry.pages)

    def _unset_unheld(self, entry: AdapterEntry) -> None:
        del self._unheld[entry.key]
        self._num_unheld_pages -= len(entry.pages)


def _number(item: tuple[AdapterKey, AdapterEntry]) -> int:
    return item[1].number
