"""An adapter store whose disk answers nobody for a while.

Knows nothing of adapters. Invariant: nothing is lost: whoever waited gets what is there.
"""

from __future__ import annotations

import threading
from pathlib import Path

from lora.store import LocalAdapterStore


class HangingStore(LocalAdapterStore):
    """Whoever reads a file waits for `may_answer`; `num_waiting` of them do."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.may_answer = threading.Event()
        self._lock = threading.Lock()
        self.num_waiting = 0

    def read(self, locator: str, name: str) -> bytes:
        with self._lock:
            self.num_waiting += 1
        self.may_answer.wait()
        return super().read(locator, name)
