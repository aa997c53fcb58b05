"""Shows what a command is doing: a live line on a terminal, plain lines elsewhere.

Knows nothing of what is being done. Invariant: whatever takes longer than a second has said what it
is, and every step ends with how long it took.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from app.launcher.stack import Step

PLAIN_INTERVAL_S = 5.0


class _LiveStep:
    def __init__(self, progress: Progress, doing: str) -> None:
        self._progress = progress
        self._doing = doing
        self._task = progress.add_task(doing, total=None)

    def update(self, what: str, fraction: float) -> None:
        description = f"{self._doing}: {what}"
        self._progress.update(self._task, description=description, total=1.0, completed=fraction)


class _PlainStep:
    def __init__(self, console: Console) -> None:
        self._console = console
        self._shown_at = time.monotonic()

    def update(self, what: str, fraction: float) -> None:
        now = time.monotonic()
        if now - self._shown_at >= PLAIN_INTERVAL_S:
            self._shown_at = now
            self._console.print(f"  {what} ({fraction:.0%})", soft_wrap=True, markup=False)


class ConsoleSteps:
    """`with steps.step("Starting Postgres"): ...`, one at a time, on standard error."""

    def __init__(self, console: Console) -> None:
        self._console = console

    @contextmanager
    def step(self, doing: str) -> Iterator[Step]:
        """Show `doing` until the block ends, then that it is done, or nothing if it failed."""
        started_at = time.monotonic()
        if self._console.is_terminal:
            columns = (
                SpinnerColumn(),
                TextColumn("{task.description}", markup=False),
                BarColumn(bar_width=24),
                TimeElapsedColumn(),
            )
            with Progress(*columns, console=self._console, transient=True) as progress:
                yield _LiveStep(progress, doing)
        else:
            self._console.print(f"{doing} ...", soft_wrap=True, markup=False)
            yield _PlainStep(self._console)
        took_s = time.monotonic() - started_at
        self._console.print(f"[green]✓[/] {doing} ({took_s:.1f} s)", soft_wrap=True)
