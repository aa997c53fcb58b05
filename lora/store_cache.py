"""Local copies of what lies in a bucket, up to so many bytes; the least recently wanted go first.

Knows nothing of buckets or of what an adapter contains. Invariants: a copy that can be found is
complete; what is found or kept now is not what has to go. Whoever reads a copy while it goes sees
its files vanish, and fetches it again.
"""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from lora.store import folder_of, is_complete, remove_stale

STAGING = ".staging"
STALE_STAGING_S = 3600.0


@dataclass(frozen=True, slots=True)
class _Copy:
    folder: Path
    num_bytes: int
    wanted_at: float


class StoreCache:
    """Of one process, or of several on one disk: what one removes, another downloads again."""

    def __init__(self, root: Path, max_bytes: int) -> None:
        self._root = root
        self._max_bytes = max_bytes

    def find(self, locator: str) -> Path | None:
        folder = folder_of(self._root, locator)
        if not is_complete(folder):
            return None
        with suppress(OSError):  # gone meanwhile: whoever reads it will see
            os.utime(folder)
        return folder

    @contextmanager
    def staging(self) -> Iterator[Path]:
        """A scratch folder on the cache's own file system, for what `keep` then takes."""
        parent = self._root / STAGING
        parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=parent) as scratch:
            folder = Path(scratch) / "adapter"
            folder.mkdir()
            yield folder

    def keep(self, locator: str, folder: Path) -> Path:
        """Make `folder`, of `staging`, the copy of `locator`, in the place of any that is there."""
        target = folder_of(self._root, locator)
        target.parent.mkdir(parents=True, exist_ok=True)
        while True:
            try:
                folder.rename(target)
                break
            except OSError:
                if not target.exists():
                    raise
                self.drop(locator)
        self._make_room(target)
        return target

    def drop(self, locator: str) -> None:
        _remove(folder_of(self._root, locator), self._root / STAGING)

    def _make_room(self, kept: Path) -> None:
        copies = sorted(self._copies(), key=lambda copy: copy.wanted_at)
        num_bytes = sum(copy.num_bytes for copy in copies)
        for copy in copies:
            if num_bytes <= self._max_bytes:
                break
            if copy.folder != kept:
                _remove(copy.folder, self._root / STAGING)
                num_bytes -= copy.num_bytes
        remove_stale(self._root / STAGING, time.time() - STALE_STAGING_S)

    def _copies(self) -> Iterator[_Copy]:
        for folder in self._root.glob("[!.]*/*"):
            with suppress(OSError):
                sizes = [path.stat().st_size for path in folder.iterdir()]
                yield _Copy(folder, sum(sizes), folder.stat().st_mtime)


def _remove(folder: Path, staging: Path) -> None:
    """One rename first, so that no half of a copy is ever found."""
    if not folder.exists():
        return
    staging.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=staging) as scratch, suppress(FileNotFoundError):
        folder.rename(Path(scratch) / "removed")
