"""An adapter store on a disk that refuses to be written to.

Knows nothing of adapters. Invariant: what was kept before can still be fetched.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from lora.store import AdapterStore


@dataclass
class FailingDisk:
    """`error` is the errno of every write."""

    store: AdapterStore
    error: int

    def put(self, tenant_id: str, digest: str, files: Mapping[str, Path]) -> str:
        raise OSError(self.error, "of the disk, at /var/secret")

    def fetch(self, locator: str, *, anew: bool = False) -> Path:
        return self.store.fetch(locator, anew=anew)

    def read(self, locator: str, name: str) -> bytes:
        return self.store.read(locator, name)

    def contains(self, locator: str) -> bool:
        return self.store.contains(locator)

    def delete(self, locator: str) -> None:
        self.store.delete(locator)
