"""`tenfold doctor`: looks at everything that Tenfold depends on, from where it is started.

Knows nothing of the checks: they need what the command itself does not load, so it is a process.
"""

from __future__ import annotations

import typer

from app.cli.processes import become


def doctor(context: typer.Context) -> None:
    """Look at database, Redis, store, GPU, model, limits and clock, and say what to do."""
    become("app.doctor", *context.args)
