"""A token that goes with an import, from the API to a worker: sealed where it waits.

Knows nothing of what it opens. The key is derived from the queue's secret, which API and workers
share (HMAC-SHA256 as RFC 5869 expands). Invariants: a sealed token opens for the import that it was
sealed for, and for no other; of several secrets the first seals and any opens.
"""

from __future__ import annotations

import hashlib
import hmac

from app.encryption import DataKey, SealBrokenError

_PURPOSE = b"tenfold import token, version 1\x01"


class TokenSealer:
    def __init__(self, queue_secrets: str) -> None:
        """queue_secrets: one, or several with commas between."""
        self._keys = [_key(secret.strip()) for secret in queue_secrets.split(",")]

    def seal(self, import_id: str, token: str) -> bytes:
        return self._keys[0].seal_record(import_id, token.encode())

    def open(self, import_id: str, sealed: bytes) -> str:
        """Raises SealBrokenError."""
        for key in self._keys[:-1]:
            try:
                return key.open_record(import_id, sealed).decode()
            except SealBrokenError:
                continue
        return self._keys[-1].open_record(import_id, sealed).decode()


def _key(secret: str) -> DataKey:
    return DataKey(hmac.digest(secret.encode(), _PURPOSE, hashlib.sha256))
