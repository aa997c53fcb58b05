"""What API and workers hand each other through the registry, sealed where it waits.

Knows nothing of what it seals. The key is derived from the queue's secret, which API and workers
share (HMAC-SHA256 as RFC 5869 expands), and from a purpose. Invariants: a record opens for the id
and the purpose that it was sealed for, and for no other; of several secrets the first seals and any
opens.
"""

from __future__ import annotations

import hashlib
import hmac

from app.encryption import DataKey, SealBrokenError
from engine.transport.secret_list import secrets_of


class RecordSealer:
    """For one purpose."""

    def __init__(self, queue_secrets: str, purpose: bytes) -> None:
        """queue_secrets: one, or several with commas between."""
        self._keys = [_key(secret, purpose) for secret in secrets_of(queue_secrets)]

    def seal(self, record_id: str, data: bytes) -> bytes:
        return self._keys[0].seal_record(record_id, data)

    def open(self, record_id: str, sealed: bytes) -> bytes:
        """Raises SealBrokenError."""
        for key in self._keys[:-1]:
            try:
                return key.open_record(record_id, sealed)
            except SealBrokenError:
                continue
        return self._keys[-1].open_record(record_id, sealed)


def _key(secret: str, purpose: bytes) -> DataKey:
    return DataKey(hmac.digest(secret.encode(), purpose, hashlib.sha256))
