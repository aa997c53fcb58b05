"""What the registry said a moment ago, for while it is away.

The registry is asked each time, so that a key that is disabled and an alias that moves count from
the next request on; only where it does not answer, what it last said counts, for `max_age_s`. Knows
nothing of keys or models. Invariant: what is older, what the registry has denied since, and what
was never asked is not served.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Coroutine, Hashable
from typing import Any, TypeVar, cast

from app.availability import Availability
from app.errors import ApiError, UnavailableError

MAX_AGE_S = 30.0
MAX_ENTRIES = 10_000

T = TypeVar("T")


class RegistrySnapshot:
    """One per API process. Entries are (when the registry said so, what)."""

    def __init__(
        self,
        availability: Availability,
        *,
        max_age_s: float = MAX_AGE_S,
        max_entries: int = MAX_ENTRIES,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.availability = availability
        self._max_age_s = max_age_s
        self._max_entries = max_entries
        self._clock = clock
        self._entries: dict[Hashable, tuple[float, Any]] = {}
        """The latest last."""

    @property
    def is_held(self) -> bool:
        """Whether there is anything that would still be served."""
        latest = next(reversed(self._entries.values()), None)
        return latest is not None and self._is_young(latest[0])

    async def look_up(
        self, name: Hashable, work: Callable[[], Coroutine[Any, Any, T | None]]
    ) -> T | None:
        """What `work` finds in the registry, or found under this name; None: it is not there.

        Raises UnavailableError where the registry is away and has not said anything lately.
        """
        try:
            found = await self.availability.ask(work)
        except UnavailableError:
            said_at, known = self._entries.get(name, (0.0, None))
            if known is None or not self._is_young(said_at):
                raise
            return cast(T, known)
        except ApiError:  # an answer as well: there is no such thing
            self._entries.pop(name, None)
            raise
        self._entries.pop(name, None)
        if found is not None:
            self._remember(name, found)
        return found

    def forget(self) -> None:
        """Something was revoked: nothing that was said before counts any more."""
        self._entries.clear()

    def _remember(self, name: Hashable, value: object) -> None:
        if len(self._entries) >= self._max_entries:
            del self._entries[next(iter(self._entries))]
        self._entries[name] = (self._clock(), value)

    def _is_young(self, said_at: float) -> bool:
        return self._clock() - said_at < self._max_age_s
