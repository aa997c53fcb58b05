"""Ends a process that a killed launcher left behind, known by its pid file.

Knows nothing of what the process is. Invariant: only the very process that wrote the pid file is
signalled: a pid that the system has since given to another has another start time. The caller
holds the folder's lock, so no live launcher owns the process.
"""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

POLL_INTERVAL_S = 0.02


def process_started_at(pid: int) -> str:
    """When the process started, in clock ticks since boot; "" where the system does not tell."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return ""
    # The command name is in parentheses and may hold anything; fields are counted after it.
    state, *fields = stat.rpartition(")")[2].split()
    return "" if state == "Z" else fields[18]


def end_orphan(pid_path: Path, stop_signal: signal.Signals, grace_s: float) -> bool:
    """End the process that `pid_path` names, if it still runs; whether there was one.

    A stale or broken pid file is removed.
    """
    try:
        pid_text, started_at = pid_path.read_text().split()
        pid = int(pid_text)
    except FileNotFoundError:
        return False
    except ValueError:
        pid_path.unlink()
        return False
    was_running = _is_same(pid, started_at)
    for signum, wait_s in ((stop_signal, grace_s), (signal.SIGKILL, 5.0)):
        deadline = time.monotonic() + wait_s
        if _is_same(pid, started_at):
            os.kill(pid, signum)
        while _is_same(pid, started_at) and time.monotonic() < deadline:
            time.sleep(POLL_INTERVAL_S)
    pid_path.unlink()
    return was_running


def _is_same(pid: int, started_at: str) -> bool:
    return process_started_at(pid) == started_at
