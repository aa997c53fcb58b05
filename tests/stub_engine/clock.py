"""Time that passes by itself, or only when somebody waits. Knows nothing of who does."""

from __future__ import annotations

import time
from threading import Semaphore
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


class SteppedClock(RealClock):
    """This machine's; but who sleeps goes on when `let` is called, once for each sleep."""

    def __init__(self) -> None:
        self._may_go_on = Semaphore(0)
        self._is_released = False
        self.num_sleeps = 0
        self.num_let = 0

    @property
    def is_held(self) -> bool:
        """Whether somebody sleeps. One may, at a time."""
        return self.num_sleeps > self.num_let

    def sleep(self, seconds: float) -> None:
        if not self._is_released:
            self.num_sleeps += 1
            self._may_go_on.acquire()

    def let(self) -> None:
        self.num_let += 1
        self._may_go_on.release()

    def release(self) -> None:
        """From now on nobody sleeps."""
        self._is_released = True
        self.let()


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
