"""Hands a version's files out: the bytes that were accepted, and no others.

Knows nothing of HTTP. Invariants: what is read is hashed on its way, and what is not what was
accepted never ends well: its last piece is kept back; two pieces of a file are in memory at a time,
and a tenant reads a few files at a time; no database connection is held while bytes go.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections import Counter
from collections.abc import AsyncGenerator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

from app.adapters.states import NEEDS_BYTES
from app.adapters.storage_errors import storage_errors
from app.errors import ConflictError, NotFoundError, RateLimitedError, UnavailableError
from app.tables import AdapterVersion
from lora.digest import FileDigest
from lora.store import AdapterMissingError, AdapterStore

PIECE_BYTES = 1 << 20
MAX_PER_TENANT = 8  # downloads at a time through one process
RETRY_AFTER_S = 5.0


@dataclass(slots=True)
class DownloadSlots:
    """Of one process: how many files each tenant reads now."""

    _held: Counter[str] = field(default_factory=Counter)

    @contextmanager
    def hold(self, tenant_id: str) -> Iterator[None]:
        """Raises RateLimitedError."""
        if self._held[tenant_id] >= MAX_PER_TENANT:
            raise RateLimitedError(
                f"{MAX_PER_TENANT} downloads are under way. Please try again when one has ended.",
                type="concurrency",
                retry_after_s=RETRY_AFTER_S,
            )
        self._held[tenant_id] += 1
        try:
            yield
        finally:
            self._held[tenant_id] -= 1
            if not self._held[tenant_id]:
                del self._held[tenant_id]


@dataclass(frozen=True, slots=True)
class KeptFile:
    """A file of a version, and where its bytes are."""

    store: AdapterStore
    locator: str
    file: FileDigest

    async def pieces(self) -> AsyncGenerator[bytes, None]:
        """The file, a mebibyte at a time.

        Raises UnavailableError: `adapter_missing`, `adapter_corrupt`, or the store is away. What is
        damaged is told of before its last piece.
        """
        sha256 = hashlib.sha256()
        held = b""
        for start in range(0, self.file.num_bytes, PIECE_BYTES):
            with storage_errors():
                piece = await asyncio.to_thread(self._read, start)
            await asyncio.to_thread(sha256.update, piece)
            if held:
                yield held
            held = piece
        if sha256.hexdigest() != self.file.sha256:
            raise self._unavailable("adapter_corrupt")
        yield held

    async def sign(self, lifetime: timedelta) -> str | None:
        """A URL of the store's own; None where it has none. Raises UnavailableError."""
        with storage_errors():
            return await asyncio.to_thread(self.store.sign, self.locator, self.file.name, lifetime)

    def _read(self, start: int) -> bytes:
        try:
            return self.store.read_range(self.locator, self.file.name, start, PIECE_BYTES)
        except AdapterMissingError as error:
            raise self._unavailable("adapter_missing") from error

    def _unavailable(self, code: str) -> UnavailableError:
        return UnavailableError(
            "The adapter's stored bytes are gone or damaged.",
            code=code,
            internal=f"{self.file.name} of {self.locator}",
        )


def kept_files(store: AdapterStore, version: AdapterVersion) -> list[KeptFile]:
    """All of a version's files. Raises ConflictError (`version_erased`) where they are kept no
    more, or only to be taken back."""
    if version.state not in NEEDS_BYTES:
        raise ConflictError(
            f"v{version.number} is {version.state}: its bytes are not to be had.",
            code="version_erased",
            param="version",
        )
    return [KeptFile(store, version.locator, _row(each)) for each in version.files]


def find_kept(store: AdapterStore, version: AdapterVersion, path: str) -> KeptFile:
    """One of `kept_files`. Raises NotFoundError."""
    for kept in kept_files(store, version):
        if kept.file.name == path:
            return kept
    raise NotFoundError("The version has no such file.", param="path")


def _row(stored: dict[str, Any]) -> FileDigest:
    return FileDigest(stored["name"], stored["num_bytes"], stored["sha256"])
