"""Where files' bytes lie: a local folder, behind a protocol that an object store can satisfy.

Knows nothing of what the bytes are; they are sealed before they come here. Invariant: what is under
a locator is whole, or is not there; what was interrupted goes with `delete`.
"""

from __future__ import annotations

import asyncio
import os
import re
from collections.abc import AsyncGenerator, AsyncIterable
from pathlib import Path
from typing import IO, Protocol

READ_BYTES = 1 << 20
_LOCATOR = re.compile(r"[a-z]{3}_[0-9a-z]{26}/[a-z]{3}_[0-9a-z]{26}")


class FileStore(Protocol):
    """Locators are `<tenant id>/<file id>`."""

    async def put(self, locator: str, chunks: AsyncIterable[bytes]) -> None:
        """Keep the bytes under a new locator. Raises whatever `chunks` raises, and OSError."""

    def read(self, locator: str) -> AsyncGenerator[bytes, None]:
        """The bytes, a piece at a time. Raises FileNotFoundError."""

    async def delete(self, locator: str) -> None:
        """Remove the bytes, and what an interrupted `put` left, if there are any."""


class LocalFileStore:
    """A folder for each tenant, a file for each locator."""

    def __init__(self, root: Path) -> None:
        self._root = root

    async def put(self, locator: str, chunks: AsyncIterable[bytes]) -> None:
        scratch = self._scratch(locator)
        file = await asyncio.to_thread(_create, scratch)
        try:
            async for chunk in chunks:
                await asyncio.to_thread(file.write, chunk)
            await asyncio.to_thread(_finish, file, scratch, self._path(locator))
        except BaseException:
            await asyncio.shield(asyncio.to_thread(_abandon, file, scratch))
            raise

    async def read(self, locator: str) -> AsyncGenerator[bytes, None]:
        file = await asyncio.to_thread(self._path(locator).open, "rb")
        try:
            while chunk := await asyncio.to_thread(file.read, READ_BYTES):
                yield chunk
        finally:
            file.close()

    async def delete(self, locator: str) -> None:
        for path in (self._path(locator), self._scratch(locator)):
            await asyncio.to_thread(path.unlink, missing_ok=True)

    def _path(self, locator: str) -> Path:
        assert _LOCATOR.fullmatch(locator), "locators are made here, of ids"
        return self._root / locator

    def _scratch(self, locator: str) -> Path:
        path = self._path(locator)
        return path.with_name(f".{path.name}")


def _create(path: Path) -> IO[bytes]:
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    return os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb")


def _finish(file: IO[bytes], scratch: Path, path: Path) -> None:
    """The file appears whole, and stays there when the machine goes down."""
    file.flush()
    os.fsync(file.fileno())
    file.close()
    scratch.rename(path)
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def _abandon(file: IO[bytes], scratch: Path) -> None:
    file.close()
    scratch.unlink(missing_ok=True)
