"""The options that `tenfold demo` and `tenfold serve` share."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

DataDir = Annotated[
    Path, typer.Option(help="Folder for everything that Tenfold keeps: registry, adapters, logs.")
]
Port = Annotated[int, typer.Option(min=1, max=65535, help="Port of the tenants' API.")]
AdminPort = Annotated[
    int | None,
    typer.Option(
        min=1, max=65535, help="Port of the operators' API.", show_default="the port after --port"
    ),
]
Threads = Annotated[
    int | None, typer.Option(min=1, help="Threads of the engine.", show_default="all cores")
]
Device = Annotated[
    str | None,
    typer.Option(help="cpu, cuda or auto.", show_default="auto, a GPU where there is one"),
]
Dtype = Annotated[
    str | None,
    typer.Option(help="float32 or bfloat16.", show_default="float32 on a CPU, bfloat16 on a GPU"),
]
BatchInvariant = Annotated[
    bool | None,
    typer.Option(
        "--batch-invariant/--no-batch-invariant",
        help="An answer does not depend on what else is in its batch, to the last bit.",
    ),
]
