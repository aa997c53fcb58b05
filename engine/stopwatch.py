"""Adds up the time that one thread spends on one kind of work. Knows nothing of the work."""

from __future__ import annotations

from collections.abc import Callable


class Stopwatch:
    """`with watch:` around the work; what is inside of another one counts once."""

    def __init__(self, clock: Callable[[], float]) -> None:
        """clock: seconds that only grow."""
        self._clock = clock
        self._depth = 0
        self._started_at = 0.0
        self._seconds = 0.0

    def __enter__(self) -> None:
        if self._depth == 0:
            self._started_at = self._clock()
        self._depth += 1

    def __exit__(self, *_: object) -> None:
        self._depth -= 1
        if self._depth == 0:
            self._seconds += self._clock() - self._started_at

    def take(self) -> float:
        """Seconds since the last `take`."""
        seconds, self._seconds = self._seconds, 0.0
        return seconds
