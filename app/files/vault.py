"""Keeps bodies sealed: an envelope over a store.

Knows nothing of tenants or purposes. Invariant: no byte of a body reaches the store in clear, and
none leaves here that was not found whole; a body opens under its own locator alone.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterable
from contextlib import aclosing
from dataclasses import dataclass
from pathlib import Path

from app.encryption import EnvelopeKeys, Opener, Sealer
from app.files.store import FileStore, LocalFileStore
from app.settings import WorkerSettings


@dataclass(frozen=True, slots=True)
class SealedBody:
    """What has to be known to read a body again. `num_bytes` is its length in clear."""

    locator: str
    wrapped_key: bytes
    num_bytes: int


@dataclass(frozen=True, slots=True)
class FileVault:
    store: FileStore
    keys: EnvelopeKeys

    async def put(self, locator: str, chunks: AsyncIterable[bytes]) -> SealedBody:
        """Seal and keep what `chunks` gives. Raises whatever it raises, and OSError."""
        key, wrapped = self.keys.new_data_key(locator)
        sealer = Sealer(key)
        await self.store.put(locator, _sealed(sealer, chunks))
        return SealedBody(locator, wrapped, sealer.num_bytes)

    async def read(self, body: SealedBody) -> AsyncGenerator[bytes, None]:
        """The body in clear, a piece at a time. Raises SealBrokenError and FileNotFoundError."""
        opener = Opener(self.keys.unwrap(body.locator, body.wrapped_key))
        async with aclosing(self.store.read(body.locator)) as chunks:
            async for chunk in chunks:
                opened = await asyncio.to_thread(opener.feed, chunk)
                if opened:
                    yield opened
        yield opener.finish()

    async def lines(self, body: SealedBody, max_bytes: int) -> AsyncGenerator[bytes, None]:
        """The body's lines without their ends; of one that is longer, its first `max_bytes` + 1."""
        pending = bytearray()
        async with aclosing(self.read(body)) as chunks:
            async for chunk in chunks:
                *whole, rest = chunk.split(b"\n")
                for line in whole:
                    yield bytes((pending + line)[: max_bytes + 1])
                    pending.clear()
                pending += rest[: max_bytes + 1 - len(pending)]
        if pending:
            yield bytes(pending)

    async def delete(self, locator: str) -> None:
        await self.store.delete(locator)


def open_vault(settings: WorkerSettings) -> FileVault | None:
    """None where the settings name no place for files, or no key to seal them with."""
    if settings.file_store is None or settings.envelope_keys is None:
        return None
    keys = EnvelopeKeys(settings.envelope_keys.get_secret_value())
    return FileVault(LocalFileStore(Path(settings.file_store)), keys)


async def _sealed(sealer: Sealer, chunks: AsyncIterable[bytes]) -> AsyncGenerator[bytes, None]:
    async for chunk in chunks:
        sealed = await asyncio.to_thread(sealer.feed, chunk)
        if sealed:
            yield sealed
    yield sealer.finish()
