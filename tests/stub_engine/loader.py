"""Adapters without bytes: they arrive at once, or after a time, or not at all.

Knows nothing of files. Invariant: every load that was started completes exactly once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from math import inf
from threading import Timer

from engine.adapter_key import AdapterKey, adapter_key
from engine.messages import AdapterRef, EngineError, ModuleFigure
from engine.residency import LoadResult
from tests.stub_engine.clock import Clock
from tests.stub_engine.memory import PageMemory

PAGE_BYTES = 4096
"""Of the host's memory, for each page of an adapter."""


@dataclass(eq=False, slots=True)
class StubWeights:
    """An adapter that is nothing but its pages."""

    ref: AdapterRef
    size: int
    memory: PageMemory
    clock: Clock
    install_s: float
    pages: Sequence[int] = ()
    installed_at: float = inf
    is_copied = False

    @property
    def key(self) -> AdapterKey:
        return adapter_key(self.ref)

    @property
    def for_kernels(self) -> StubWeights:
        return self

    @property
    def is_installed(self) -> bool:
        return self.clock() >= self.installed_at

    def num_pages(self, page_bytes: int) -> int:
        return self.size

    @property
    def num_bytes(self) -> int:
        return self.size * PAGE_BYTES

    def install(self, pages: Sequence[int]) -> StubWeights:
        self.pages = tuple(pages)
        self.memory.install(self.key, pages)
        self.installed_at = self.clock() + self.install_s
        return self


def one_page(ref: AdapterRef) -> int:
    return 1


def never(ref: AdapterRef) -> EngineError | None:
    return None


@dataclass
class InstantLoader:
    """Every adapter is there when it is asked for; `fails` says which are not, and why."""

    memory: PageMemory
    clock: Clock
    pages_of: Callable[[AdapterRef], int] = one_page
    fails: Callable[[AdapterRef], EngineError | None] = never
    install_s: float = 0.0
    num_started: int = 0
    _completed: list[AdapterRef] = field(default_factory=list)

    def start(self, ref: AdapterRef) -> None:
        self.num_started += 1
        self._completed.append(ref)

    def figures_of(self, ref: AdapterRef) -> tuple[ModuleFigure, ...]:
        """There are no modules."""
        return ()

    def take_completed(self) -> list[LoadResult]:
        taken, self._completed = self._completed, []
        return [self._result(ref) for ref in taken]

    def close(self) -> None:
        pass

    def _result(self, ref: AdapterRef) -> LoadResult:
        error = self.fails(ref)
        if error is not None:
            return LoadResult(ref, None, error)
        weights = StubWeights(ref, self.pages_of(ref), self.memory, self.clock, self.install_s)
        return LoadResult(ref, weights)


@dataclass
class DelayedLoader(InstantLoader):
    """An adapter is there `delay_s` after it was asked for.

    on_completed: called from a thread of its own when that is so, in real time; a simulation asks
    for `next_due` instead.
    """

    delay_s: Callable[[AdapterRef], float] = lambda ref: 0.0
    on_completed: Callable[[], None] | None = None
    _pending: list[tuple[float, AdapterRef]] = field(default_factory=list)

    @property
    def next_due(self) -> float | None:
        """When the next adapter will be there."""
        return min((due for due, _ in self._pending), default=None)

    def start(self, ref: AdapterRef) -> None:
        self.num_started += 1
        delay_s = self.delay_s(ref)
        self._pending.append((self.clock() + delay_s, ref))
        if self.on_completed is not None:
            timer = Timer(delay_s, self.on_completed)
            timer.daemon = True
            timer.start()

    def take_completed(self) -> list[LoadResult]:
        now = self.clock()
        self._completed += [ref for due, ref in self._pending if due <= now]
        self._pending = [(due, ref) for due, ref in self._pending if due > now]
        return super().take_completed()
