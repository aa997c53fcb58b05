"""A step that was launched: whose rows it samples, and its tokens once it has run.

Knows nothing of devices; holds no tensors itself. Invariant: row i of the ids that the step
samples is `sampling[i]`'s, and this is known at launch, before any id is.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from engine.row_failures import Outcome
from engine.sequence import Sequence as EngineSequence


class StepHandle(Protocol):
    """What `Runner.execute` returns, perhaps before the device is done."""

    @property
    def sampling(self) -> Sequence[EngineSequence]:
        """The sequences that get a token, in the order of the rows that sample."""

    def result(self) -> Mapping[EngineSequence, Outcome]:
        """Wait for the step; for each sequence in `sampling` its token, or why it has none.

        Raises whatever the step failed with. Either way the device is then done with every page
        that the step reads or writes.
        """


@dataclass(frozen=True, slots=True)
class CompletedStep:
    """A step of a runner that computes at once."""

    sampling: Sequence[EngineSequence]
    outcomes: Sequence[Outcome]

    def result(self) -> Mapping[EngineSequence, Outcome]:
        return dict(zip(self.sampling, self.outcomes, strict=True))
