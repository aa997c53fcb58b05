"""A loader without files or threads: adapters arrive after a number of polls, of a given size."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from math import inf
from typing import Any

from engine.config import EngineConfig
from engine.messages import AdapterRef, EngineError
from engine.residency import LoadResult
from tests.builders.adapters import TINY_BASE

BLOCK_SIZE = 8
PAGE_BYTES = EngineConfig(block_size=BLOCK_SIZE).page_bytes(TINY_BASE)
CORRUPT = EngineError(code="adapter_corrupt", message="damaged")

Install = Callable[[AdapterRef, Sequence[int]], None]


def make_ref(name: str) -> AdapterRef:
    return AdapterRef(tenant_id=f"ten_{name}", digest=f"sha256:{name}", locator=name)


@dataclass(eq=False)
class ScriptedWeights:
    """Weights of the loader's that take `size` pages."""

    ref: AdapterRef
    size: int
    loader: ScriptedLoader
    installed_at: float = inf
    is_copied = False

    @property
    def is_installed(self) -> bool:
        return self.loader.polls >= self.installed_at

    @property
    def for_kernels(self) -> Any:
        return self.ref

    def num_pages(self, page_bytes: int) -> int:
        return self.size

    @property
    def num_bytes(self) -> int:
        return self.size * PAGE_BYTES

    def install(self, pages: Sequence[int]) -> ScriptedWeights:
        self.installed_at = self.loader.polls + self.loader.install_delay
        self.loader.on_install(self.ref, pages)
        return self


@dataclass
class ScriptedLoader:
    """Delivers an adapter after `delay` polls; sizes in pages by locator; some fail.

    Its pages are filled `install_delay` polls after it got them; `on_install` learns which.
    """

    delay: int = 0
    install_delay: int = 0
    pages: dict[str, int] = field(default_factory=dict)
    corrupt: set[str] = field(default_factory=set)
    started: list[str] = field(default_factory=list)
    pending: list[tuple[int, AdapterRef]] = field(default_factory=list)
    polls: int = 0
    on_install: Install = lambda ref, pages: None

    def start(self, ref: AdapterRef) -> None:
        self.started.append(ref.locator)
        self.pending.append((self.polls + self.delay, ref))

    def take_completed(self) -> list[LoadResult]:
        self.polls += 1
        ready = [ref for due, ref in self.pending if due < self.polls]
        self.pending = [(due, ref) for due, ref in self.pending if due >= self.polls]
        return [self._result(ref) for ref in ready]

    def _result(self, ref: AdapterRef) -> LoadResult:
        if ref.locator in self.corrupt:
            return LoadResult(ref, None, CORRUPT)
        return LoadResult(ref, ScriptedWeights(ref, self.pages.get(ref.locator, 1), self))
