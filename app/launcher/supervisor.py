"""Keeps a set of processes: started in order, watched, stopped in reverse order.

Knows nothing of what they are. Invariant: when one ends, or somebody asks to stop, all end.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Protocol

from app.launcher.errors import LauncherError
from app.launcher.signals import StopRequested

POLL_INTERVAL_S = 0.1


class Managed(Protocol):
    """A process, or a server with its process."""

    def start(self) -> None:
        """Start it. Raises LauncherError, having cleaned up."""

    def stop(self) -> None:
        """Stop it; may be called again after an interruption."""

    def check_running(self) -> None:
        """Raise ChildExitedError if it has ended."""


class Supervisor:
    """Owns what it has started. Use from the main thread: children live as long as it does."""

    def __init__(self) -> None:
        self._running: list[Managed] = []

    def start(self, managed: Managed) -> None:
        """Start one more. It is owned before it runs, so an interruption leaves nothing behind."""
        self._running.append(managed)
        managed.start()

    def check_running(self) -> None:
        """Raise ChildExitedError if any has ended."""
        for managed in self._running:
            managed.check_running()

    def wait_until(self, is_ready: Callable[[], bool], timeout_s: float, what: str) -> None:
        """Wait for `is_ready()` while all run.

        Raises ChildExitedError when one ends, LauncherError at the deadline.
        """
        deadline = time.monotonic() + timeout_s
        while not is_ready():
            self.check_running()
            if time.monotonic() > deadline:
                raise LauncherError(f"{what} was not ready within {timeout_s:g} s")
            time.sleep(POLL_INTERVAL_S)

    def watch(self) -> None:
        """Return never: raises ChildExitedError when one ends, or StopRequested."""
        while True:
            self.check_running()
            time.sleep(POLL_INTERVAL_S)

    def stop(self) -> None:
        """Stop all, newest first. A further request to stop kills the one that is waited for."""
        while self._running:
            try:
                self._running[-1].stop()
            except StopRequested:
                continue
            self._running.pop()
