"""A store that answers from copies, as one of a remote store would; it remembers what it did."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path

from lora.store import WEIGHTS_FILE, AdapterStore


@dataclass
class CopyingStore:
    """An `AdapterStore` in front of `origin`."""

    origin: AdapterStore
    copies: Path
    fetches: list[tuple[str, bool]] = field(default_factory=list)
    """(locator, anew)"""
    threads: set[int] = field(default_factory=set)

    def put(self, tenant_id: str, digest: str, files: Mapping[str, Path]) -> str:
        return self.origin.put(tenant_id, digest, files)

    def fetch(self, locator: str, *, anew: bool = False) -> Path:
        self.fetches.append((locator, anew))
        self.threads.add(threading.get_ident())
        copy = self.copies / locator
        if anew and copy.exists():
            shutil.rmtree(copy)
        if not copy.exists():
            shutil.copytree(self.origin.fetch(locator), copy)
        return copy

    def read(self, locator: str, name: str) -> bytes:
        return self.origin.read(locator, name)

    def read_range(self, locator: str, name: str, start: int, num_bytes: int) -> bytes:
        return self.origin.read_range(locator, name, start, num_bytes)

    def sign(self, locator: str, name: str, lifetime: timedelta) -> str | None:
        return self.origin.sign(locator, name, lifetime)

    def contains(self, locator: str) -> bool:
        return self.origin.contains(locator)

    def delete(self, locator: str) -> None:
        self.origin.delete(locator)

    def damage_copy(self, locator: str) -> None:
        damage(self.copies / locator)


def damage(folder: Path) -> None:
    """Turn one bit of an adapter's weights around."""
    weights = folder / WEIGHTS_FILE
    content = bytearray(weights.read_bytes())
    content[-1] ^= 1
    weights.write_bytes(content)
