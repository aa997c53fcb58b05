"""Runs the scripts of `deploy/` that back up and restore, with the tools of a given Postgres.

Knows nothing of what they do.
"""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from app.launcher.postgres import PostgresServer
from tests.chart.rendering import CHECKOUT


def script(
    name: str,
    folder: Path,
    server: PostgresServer,
    url: str,
    store: Path,
    files: Path | None = None,
) -> subprocess.CompletedProcess[str]:
    """`deploy/NAME FOLDER`. url: of the registry's owner. files: the file store, if any."""
    variables = {
        "PATH": f"{server.home.bin_dir}:{os.environ['PATH']}",
        "TENFOLD_OWNER_DATABASE_URL": url,
        "TENFOLD_ADAPTER_STORE": str(store),
        "TENFOLD_FILE_STORE": "" if files is None else str(files),
    }
    return subprocess.run(
        [CHECKOUT / "deploy" / name, folder],
        env=os.environ | variables,
        capture_output=True,
        text=True,
        check=False,
    )
