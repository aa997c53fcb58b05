"""How a request that was done before leaves the path of one that has to be done.

Knows nothing of keys. Invariant: it is no error; `app.error_handlers` gives the answer again.
"""

from __future__ import annotations


class AnsweredBefore(Exception):
    """The request was done, and this is what was answered."""

    def __init__(self, status: int, body: bytes) -> None:
        super().__init__(f"answered before with {status}")
        self.status = status
        self.body = body
