"""Negative controls: engines that break one promise each, for the simulation to notice."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from engine.fair_order import FairOrder
from engine.holdings import Holdings
from engine.sequence import Sequence


class FirstCome(FairOrder):
    """Whoever came first is next: a tenant gets what it asks for."""

    def turn(self, sequence: Sequence) -> tuple[float, int]:
        return (0.0, sequence.arrival)

    def in_turn(self, is_ready: Callable[[Sequence], bool]) -> Iterator[Sequence]:
        for sequence in sorted(self, key=self.turn):
            if is_ready(sequence):
                yield sequence
                if sequence in set(self):
                    return


class LeakyHoldings(Holdings):
    """Forgets to give back the last page of a sequence that has more than three."""

    def release(self, sequence: Sequence) -> None:
        if len(sequence.block_table) > 3:
            sequence.block_table.pop()
        super().release(sequence)
