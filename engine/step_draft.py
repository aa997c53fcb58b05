"""A step in the making, and how many tokens it may still take. Holds no tensors.

Knows nothing of who should be in it (`engine/scheduler.py` does). Invariant: what a sequence got
and the budget that is left are together what the draft began with.
"""

from __future__ import annotations

from dataclasses import dataclass

from engine.sequence import Sequence


@dataclass(slots=True)
class StepDraft:
    """`step`: how many tokens of each sequence the next forward pass computes."""

    step: dict[Sequence, int]
    budget: int
    is_short: bool = False
    """A running sequence lacks pages: nobody else is to have them."""
    is_stuck: bool = False
    """Only the step in flight, when it has landed, can free the pages that are wanted."""

    @property
    def is_full(self) -> bool:
        return self.budget == 0 or self.is_stuck

    def give(self, sequence: Sequence, num_tokens: int) -> None:
        self.step[sequence] = num_tokens
        self.budget -= num_tokens

    def take_back(self, sequence: Sequence) -> None:
        """What it got, if anything; for one that is to wait."""
        self.budget += self.step.pop(sequence, 0)
