"""`tenfold api | worker | engine | migrate`: one process each, for whoever runs them in production.

Each replaces this process with the real one, so that signals and exit statuses are its own. Their
settings come from `TENFOLD_` variables; knows nothing of what those are.
"""

from __future__ import annotations

import os
import sys
from typing import Any

import typer

PASS_THROUGH: dict[str, Any] = {
    "context_settings": {"allow_extra_args": True, "ignore_unknown_options": True},
    "add_help_option": False,
}


def api() -> None:
    """Serve HTTP: tenants on TENFOLD_PORT (8000), operators on TENFOLD_ADMIN_PORT (8001)."""
    become("app.serve")


def worker() -> None:
    """Run the background worker: checks of uploaded adapters, sweeps, removals."""
    become("app.worker")


def engine(context: typer.Context) -> None:
    """Run one engine. Takes the options of `python -m engine`; see `tenfold engine --help`."""
    become("engine", *context.args)


def migrate() -> None:
    """Bring the registry's schema to this version, as TENFOLD_OWNER_DATABASE_URL's role."""
    become("app.migrate")


def become(module: str, *arguments: str) -> None:
    """Replace this process with `python -m module`."""
    os.execv(sys.executable, [sys.executable, "-m", module, *arguments])
