"""A token that goes with an import, from the API to a worker: sealed where it waits.

Knows nothing of what it opens. Invariant: a sealed token opens for the import that it was sealed
for, and for no other (`app.sealing`).
"""

from __future__ import annotations

from app.sealing import RecordSealer

_PURPOSE = b"tenfold import token, version 1\x01"


class TokenSealer:
    def __init__(self, queue_secrets: str) -> None:
        """queue_secrets: one, or several with commas between."""
        self._sealer = RecordSealer(queue_secrets, _PURPOSE)

    def seal(self, import_id: str, token: str) -> bytes:
        return self._sealer.seal(import_id, token.encode())

    def open(self, import_id: str, sealed: bytes) -> str:
        """Raises SealBrokenError."""
        return self._sealer.open(import_id, sealed).decode()
