"""Moves pages that hold nothing: for runners without a storage. Counts what it was asked."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field


@dataclass
class ScriptedTransfer:
    """A copy that is done when the test says so; at once by default."""

    is_over: bool = True
    seconds: float = 1e-3

    def is_done(self) -> bool:
        return self.is_over


@dataclass(frozen=True)
class ScriptedCopy:
    pages: list[int]
    done: ScriptedTransfer


@dataclass
class ScriptedMover:
    """`engine.swapping.PageMover` without content; `lags`: copies are not done by themselves."""

    lags: bool = False
    transfers: list[ScriptedTransfer] = field(default_factory=list)
    swapped_out: list[list[int]] = field(default_factory=list)
    swapped_in: list[list[int]] = field(default_factory=list)

    def swap_out(self, pages: Sequence[int]) -> ScriptedCopy:
        self.swapped_out.append(list(pages))
        return ScriptedCopy(list(pages), self._transfer())

    def swap_in(self, copy: ScriptedCopy, pages: Sequence[int]) -> ScriptedTransfer:
        assert copy.done.is_done() and len(copy.pages) == len(pages)
        self.swapped_in.append(list(pages))
        return self._transfer()

    def _transfer(self) -> ScriptedTransfer:
        self.transfers.append(ScriptedTransfer(is_over=not self.lags))
        return self.transfers[-1]
