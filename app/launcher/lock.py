"""One live owner per folder: an exclusive `flock` on a file that holds the owner's pid.

Knows nothing of what the folder holds. Invariant: the kernel drops the lock when its owner dies,
so a lock file left by a killed run locks nothing and needs no repair.
"""

from __future__ import annotations

import fcntl
import os
from pathlib import Path
from types import TracebackType
from typing import Self

from app.launcher.errors import FolderInUseError


class FolderLock:
    """`with FolderLock(folder):` or `acquire` and `release`. Raises FolderInUseError."""

    def __init__(self, folder: Path, name: str = "lock") -> None:
        self._folder = folder
        self._path = folder / name
        self._fd = -1

    def acquire(self) -> None:
        """Take the lock at once, or raise FolderInUseError that names the owner."""
        self._folder.mkdir(parents=True, exist_ok=True)
        fd = os.open(self._path, os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = os.read(fd, 32).decode("ascii", errors="replace").strip() or "unknown"
            os.close(fd)
            raise FolderInUseError(self._folder, holder) from None
        os.ftruncate(fd, 0)
        os.write(fd, f"{os.getpid()}\n".encode())
        self._fd = fd

    def release(self) -> None:
        """Give the lock back. The file stays: removing it would race with the next owner."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def __enter__(self) -> Self:
        self.acquire()
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.release()
