"""Whether a line that was turned away is sent again, and when.

Pure: knows nothing of queues or clocks. Invariants: what a later try may find otherwise is tried
again (a limit that frees before the batch expires, a full queue, an engine that died); what it
would find as it is, is its answer; nothing is tried for ever but what is no fault of its own.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from app.errors import ApiError

MAX_FAILURES = 5
FIRST_WAIT_S = 1.0
MAX_WAIT_S = 30.0
SUSPENDED_WAIT_S = 30.0

# No fault of the line's: these are not counted.
_NOBODYS_FAULT = frozenset(
    {
        "dependency_unavailable",
        "overloaded",
        "queue_timeout",
        "queue_unavailable",
        "server_shutting_down",
    }
)


@dataclass(slots=True)
class Patience:
    """Of one line. `expires_at` is its batch's."""

    expires_at: datetime
    num_tries: int = 0
    num_failures: int = 0
    may_have_run: bool = False

    def wait_after(self, error: ApiError, now: datetime) -> float | None:
        """Seconds until it is tried again; None: `error` is its answer."""
        self.num_tries += 1
        if error.status == 429:
            return self._wait_for_limit(error, now)
        if error.code == "tenant_suspended":
            return SUSPENDED_WAIT_S
        # Also where it found no engine in time: it may be another one than the first, which died.
        self.may_have_run = True
        is_final = error.status < 500 and error.status != 408
        if is_final or error.headers.get("x-should-retry") == "false":
            return None
        if error.code not in _NOBODYS_FAULT:
            self.num_failures += 1
        if self.num_failures >= MAX_FAILURES:
            return None
        return max(_retry_after(error), _growing(self.num_tries))

    def _wait_for_limit(self, error: ApiError, now: datetime) -> float | None:
        """A limit that frees in time is waited for, whatever an interactive client would do."""
        if error.headers.get("x-should-retry") != "false":
            return max(_retry_after(error), FIRST_WAIT_S)
        reset_at = error.details.get("reset_at")
        if not isinstance(reset_at, str):
            return None
        frees_at = datetime.fromisoformat(reset_at)
        if frees_at >= self.expires_at:
            return None
        return max((frees_at - now).total_seconds(), FIRST_WAIT_S)


def _growing(num_tries: int) -> float:
    return min(FIRST_WAIT_S * 2.0 ** min(num_tries - 1, 10), MAX_WAIT_S)


def _retry_after(error: ApiError) -> float:
    value = error.headers.get("retry-after", "")
    return float(value) if value.isdigit() else 0.0
