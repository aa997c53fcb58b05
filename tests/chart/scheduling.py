"""Which checks share a process: those of a file, and those of a folder below this one.

Knows nothing of the checks. Invariant: a server, an installation or an image that a file or folder
makes for its checks is made once. (xdist's own groups do nothing under pytest 9.2: they are named
in an attribute of tests that it no longer has.)
"""

from __future__ import annotations

from pathlib import PurePosixPath

import pytest
from xdist.scheduler.loadfile import LoadFileScheduling

FIRST = (
    "test_container.py",
    "test_rolling.py",
    "test_upgrade.py",
    "observability",
    "test_sentinel.py",
    "test_managed.py",
    "test_restore.py",
)
"""What takes long; else it would be left over when all others have ended."""


def place(nodeid: str) -> str:
    """The file that a check is in, or its folder, from `tests/chart` on."""
    path = PurePosixPath(nodeid.partition("::")[0])
    parts = path.parts
    return parts[parts.index("chart") + 1] if "chart" in parts else str(path)


def in_order(items: list[pytest.Item]) -> list[pytest.Item]:
    def rank(item: pytest.Item) -> int:
        where = place(item.nodeid)
        return FIRST.index(where) if where in FIRST else len(FIRST)

    return sorted(items, key=rank)


class PlaceScheduling(LoadFileScheduling):
    """Of xdist, for `-n`."""

    def _split_scope(self, nodeid: str) -> str:
        return place(nodeid)
