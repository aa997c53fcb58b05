"""Which tools of `make chart` are there; a check whose tool this machine cannot have is skipped.

Knows nothing of who asks. Invariant: a skipped check says why, in words of `tools.chart_tools`;
what the machine could have and has not, because it could not be fetched, fails its checks.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping, Sized
from functools import lru_cache
from pathlib import Path

import pytest

from tests.chart.rendering import TOOLS

CGROUPS = Path("/sys/fs/cgroup")
OUTCOMES = ("passed", "failed", "error", "skipped")


def need(name: str, folder: Path = TOOLS) -> None:
    """Skip the test that runs, where this machine cannot have that tool."""
    reason = folder / f"{name}.cannot"
    if reason.is_file():
        pytest.skip(f"{name}: {reason.read_text()}")


def need_containers() -> None:
    """Skip the test that runs, where nobody can build or run a container."""
    need("containers")
    if reason := _why_no_containers():
        pytest.skip(f"containers: {reason}")


@lru_cache
def _why_no_containers() -> str | None:
    if os.geteuid() != 0:
        return "only root may build and run them here"
    isolated = ["unshare", "--mount", "--pid", "--ipc", "--uts", "--fork", "true"]
    done = subprocess.run(isolated, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        return f"no namespaces for root ({done.stderr.strip()})"
    if not os.access(CGROUPS, os.W_OK):
        return f"{CGROUPS} is not writable"
    return None


def tally(reports: Mapping[str, Sized]) -> str:
    """The last line of `make chart`. What was skipped did not pass, and is one of all.

    reports: by outcome, as pytest's reporter has them.
    """
    counts = {name: len(reports.get(name, ())) for name in OUTCOMES}
    return f"checks passed / all: {counts['passed']} / {sum(counts.values())}"
