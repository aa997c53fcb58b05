"""Notices a step that does not end: a device that hangs, a lock that nobody opens.

Knows nothing of engines. Time is counted in ticks of the watching thread, so that a process that
was frozen as a whole, and goes on, is not taken for one that hangs. Invariant: no step is called
hung before it has lasted `limit_s`, and a quarter longer than any that ended.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

TICK_S = 0.25
MARGIN = 1.25


class StepWatchdog:
    """`with watchdog.step(): ...` in one thread, `tick()` every quarter of a second in another."""

    def __init__(self, limit_s: float) -> None:
        self._limit = limit_s / TICK_S
        self._longest = 0
        self._is_stepping = False
        self._num_steps = 0
        self._watched_step = 0
        self._num_ticks = 0

    @contextmanager
    def step(self) -> Iterator[None]:
        self._num_steps += 1
        self._is_stepping = True
        try:
            yield
        finally:
            self._is_stepping = False

    def tick(self) -> bool:
        """Whether the step that runs has hung."""
        if self._watched_step != self._num_steps or not self._is_stepping:
            self._longest = max(self._longest, self._num_ticks)
            self._watched_step = self._num_steps
            self._num_ticks = 0
            return False
        self._num_ticks += 1
        return self._num_ticks > max(self._limit, MARGIN * self._longest)
