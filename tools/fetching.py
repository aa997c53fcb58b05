"""Fetches tools into a folder: once, more than once where it must be, and says what cannot be had.

Knows nothing of what the tools are. Invariants: a tool that is there already, in the version asked
for, is not fetched again; one that could not be fetched is logged and has no stamp; for one that
this machine cannot have at all, `NAME.cannot` in the folder says why.
"""

from __future__ import annotations

import os
import subprocess
import tarfile
import time
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path

import structlog

log = structlog.get_logger()

ATTEMPT_S = 300.0
PAUSES_S = (2.0, 15.0, 45.0)
"""Before it is tried again."""
FAILURES = (subprocess.SubprocessError, OSError, ValueError, zipfile.BadZipFile, tarfile.TarError)


class CannotError(Exception):
    """This machine cannot have a tool, however well it is fetched; the message says why."""


def once(
    folder: Path,
    name: str,
    version: str,
    fetch: Callable[[], None],
    pauses_s: tuple[float, ...] = PAUSES_S,
) -> None:
    """`fetch()` unless this version is there; it may raise CannotError."""
    stamp, cannot = folder / f"{name}.installed", folder / f"{name}.cannot"
    if stamp.is_file() and stamp.read_text() == version:
        return
    cannot.unlink(missing_ok=True)
    try:
        if attempt(name, fetch, pauses_s):
            stamp.write_text(version)
    except CannotError as error:
        log.warning("tool_impossible", tool=name, reason=str(error))
        cannot.write_text(str(error))


def attempt(name: str, fetch: Callable[[], None], pauses_s: tuple[float, ...] = PAUSES_S) -> bool:
    """Whether it was fetched in the end: registries are slow at times, and cut connections."""
    started_at = time.monotonic()
    for pause_s in (*pauses_s, None):
        try:
            fetch()
        except FAILURES as error:
            if pause_s is None:
                log.error("tool_missing", tool=name, error=str(error))
                return False
            log.warning("tool_fetched_again", tool=name, error=str(error), pause_s=pause_s)
            time.sleep(pause_s)
        else:
            break
    log.info("tool_fetched", tool=name, seconds=round(time.monotonic() - started_at, 1))
    return True


def run(
    *command: str | Path,
    cwd: Path | None = None,
    habits: Mapping[str, str] = {},
    limit_s: float | None = ATTEMPT_S,
) -> None:
    """Raises SubprocessError, also where it takes longer than any of them should.

    habits: variables, where the environment does not have them.
    """
    subprocess.run(
        command,
        cwd=cwd,
        env={**habits, **os.environ},
        check=True,
        timeout=limit_s,
        stdout=subprocess.DEVNULL,
    )
