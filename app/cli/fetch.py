"""`tenfold fetch`: a model from the Hub into a folder, before a process starts that serves it.

Knows nothing of what is in a model.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from app.cli.admin_client import fail, stderr
from app.launcher.errors import LauncherError
from app.launcher.model_fetch import fetch_model
from app.launcher.model_source import HUB_ID


def fetch(
    model: Annotated[str, typer.Argument(help="A Hugging Face Hub id.")],
    to: Annotated[Path, typer.Option(help="Folder that will hold it.")],
    revision: Annotated[str | None, typer.Option(help="Branch, tag or commit.")] = None,
    without_weights: Annotated[
        bool, typer.Option("--without-weights", help="Configuration and tokenizer only.")
    ] = False,
) -> None:
    """Fetch a model from the Hub, unless the folder has it."""
    if HUB_ID.fullmatch(model) is None:
        fail(f"{model} is no Hub id")
    try:
        is_new = fetch_model(model, to, revision=revision, with_weights=not without_weights)
    except LauncherError as error:
        fail(str(error))
    stderr.print(f"{model} {'fetched into' if is_new else 'is in'} {to}")
