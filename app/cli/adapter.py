"""`tenfold adapter ...`: what can be done with an adapter's folder without any server.

Knows nothing of what is checked: the command becomes `app.adapters.offline_check`.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Annotated

import typer

adapter = typer.Typer(name="adapter", help="Adapters' folders, offline.", no_args_is_help=True)


@adapter.callback()
def _group() -> None:
    """Adapters' folders, offline."""


@adapter.command("check")
def check(
    folder: Annotated[Path, typer.Argument(exists=True, file_okay=False, metavar="DIR")],
    base: Annotated[
        Path, typer.Option(exists=True, file_okay=False, help="Folder of the base model.")
    ],
    model_id: Annotated[
        str | None, typer.Option(help="The base's name where it is served.")
    ] = None,
    strict: Annotated[
        bool, typer.Option("--strict", help="Refuse it for what is otherwise a warning.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="The report as JSON.")] = False,
) -> None:
    """Check a PEFT folder as an upload would be, and all modules of it, without a server.

    Exit status: 0 it would be served, 1 it would be refused, 2 the base cannot be read.
    """
    arguments = [str(folder), "--base", str(base)]
    arguments += [] if model_id is None else ["--model-id", model_id]
    arguments += ["--strict"] if strict else []
    arguments += ["--json"] if as_json else []
    os.execv(sys.executable, [sys.executable, "-m", "app.adapters.offline_check", *arguments])
