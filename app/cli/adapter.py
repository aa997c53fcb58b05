"""`tenfold adapter ...`: what can be done with an adapter's folder without any server.

Knows nothing of what is checked: the command becomes `engine.adapter_check`, which loads torch, and
is told what was found in the chat template, which is rendered here as the API does it.
"""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path
from typing import Annotated

import msgspec
import typer

from app.adapters.template_check import template_findings
from app.chat_templates.sandbox import TemplateSandbox
from app.completions.tokenizer import read_special_tokens
from lora.base_spec import BaseSpec, UnsupportedBaseError
from lora.findings import Finding
from lora.store import CHAT_TEMPLATE_FILE

OWNER = "ten_check"

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
    as_json: Annotated[bool, typer.Option("--json", help="The report as JSON.")] = False,
) -> None:
    """Check a PEFT folder as an upload would be, and all modules of it, without a server.

    Exit status: 0 it would be served, 1 it would be refused, 2 the base cannot be read.
    """
    arguments = [str(folder), "--base", str(base)]
    arguments += [] if model_id is None else ["--model-id", model_id]
    arguments += ["--json"] if as_json else []
    if found := asyncio.run(_find_in_template(folder, base)):
        arguments += ["--found", msgspec.json.encode(found).decode()]
    os.execv(sys.executable, [sys.executable, "-m", "app.adapters.offline_check", *arguments])


async def _find_in_template(folder: Path, base: Path) -> tuple[Finding, ...]:
    names = {path.name for path in folder.iterdir() if path.is_file()} & {CHAT_TEMPLATE_FILE}
    try:
        spec = BaseSpec.from_folder(base)
    except UnsupportedBaseError:  # the check itself says so
        return ()
    sandbox = TemplateSandbox(read_special_tokens(base))
    try:
        return await template_findings(sandbox, OWNER, folder, names, spec)
    finally:
        await sandbox.close()
