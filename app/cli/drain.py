"""`tenfold drain`: a container's preStop hook. Knows nothing of containers.

Invariant: it ends with success, drained or not: what follows is SIGTERM, which drains as well.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated

import httpx
import typer

from app.cli.admin_client import Target, open_client, stderr

POLL_S = 0.5


def drain(
    url: Annotated[
        str | None,
        typer.Option(envvar="TENFOLD_ADMIN_URL", help="Admin API.", show_default="127.0.0.1:8001"),
    ] = None,
    key: Annotated[
        str | None,
        typer.Option(
            envvar="TENFOLD_ADMIN_KEY", help="Admin key.", show_default="the data folder's"
        ),
    ] = None,
    data_dir: Annotated[
        Path, typer.Option(help="Folder of a Tenfold on this machine, to find URL and key.")
    ] = Path(".tenfold"),
    timeout: Annotated[float, typer.Option(min=0, help="Seconds to wait at most.")] = 3600,
) -> None:
    """Take an API process out of service: return when nothing runs on it any more."""
    client = open_client(Target(url, key, data_dir)).http
    give_up_at = time.monotonic() + timeout
    while True:
        try:
            status = client.post("/internal/drain").raise_for_status().json()
        except httpx.HTTPError as error:
            stderr.print(f"tenfold: not drained: {error}")
            return
        if status["is_drained"] or time.monotonic() >= give_up_at:
            return
        time.sleep(POLL_S)
