"""Runs a stack in the foreground: prepare, start, announce, watch, stop.

Knows nothing of which stack it is. Invariant: however it ends, every child has ended before it
returns, and a failure is a message and exit status 1, not a traceback.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import typer
from rich.console import Console

from app.launcher.errors import LauncherError
from app.launcher.signals import StopRequested, stop_on_signals
from app.launcher.stack import Stack


def run_in_foreground(
    stack: Stack,
    console: Console,
    prepare_model: Callable[[], Path],
    announce: Callable[[], None],
) -> None:
    """Hold the data folder, prepare the base, start all, announce, then wait for the end."""
    failure: LauncherError | None = None
    with stop_on_signals():
        try:
            stack.acquire()
            stack.start(prepare_model())
            announce()
            stack.watch()
        except StopRequested:
            console.print("Stopping; once more to hurry ...")
        except LauncherError as error:
            failure = error
        finally:
            stack.stop()
    if failure is not None:
        console.print(f"tenfold: {failure}", soft_wrap=True, markup=False, highlight=False)
        raise typer.Exit(1)
    console.print("Stopped.")
