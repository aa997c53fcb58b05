"""Time that passes by itself, or only when somebody waits. Knows nothing of who does."""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    """Call it for the seconds now; they only grow."""

    def __call__(self) -> float: ...

    def sleep(self, seconds: float) -> None: ...


class RealClock:
    """This machine's."""

    def __call__(self) -> float:
        return time.perf_counter()

    def sleep(self, seconds: float) -> None:
        time.sleep(seconds)


class VirtualClock:
    """Stands still until somebody sleeps; then it is later at once."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        assert seconds >= 0, "time does not run backwards"
        self.now += seconds

    def advance_to(self, moment: float) -> None:
        """Nothing where that has passed."""
        self.now = max(self.now, moment)
