"""The most memory that a process has while a block runs.

Knows nothing of what runs. A peak shorter than 5 ms may be missed.
"""

from __future__ import annotations

import threading

import psutil


class Peak:
    """The largest resident set of a process while the block runs, looked at every 5 ms."""

    def __init__(self, process: psutil.Process) -> None:
        self.rss = 0
        self._process = process
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._look)

    def __enter__(self) -> Peak:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._look_once()
        self._done.set()
        self._thread.join()

    def _look(self) -> None:
        while not self._done.wait(0.005):
            self._look_once()

    def _look_once(self) -> None:
        self.rss = max(self.rss, self._process.memory_info().rss)
