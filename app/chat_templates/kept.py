"""What was used last, by name: so many of it, and none for longer than a while after its last use.

Knows nothing of what it is. Invariants: what is let go of is handed to `let_go`, once; what nobody
uses goes by itself, and not only when somebody comes by. On one event loop.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class Kept(Generic[K, V]):
    def __init__(
        self, max_num: int, idle_s: float, let_go: Callable[[V], None] = lambda _: None
    ) -> None:
        self._max_num = max_num
        self._idle_s = idle_s
        self._let_go = let_go
        self._kept: OrderedDict[K, tuple[float, V]] = OrderedDict()
        """(when it was used, what); the last one used is last."""
        self._sweep: asyncio.TimerHandle | None = None

    def __len__(self) -> int:
        return len(self._kept)

    def put(self, name: K, value: V) -> None:
        """It was used just now."""
        loop = asyncio.get_running_loop()
        before = self.pop(name)
        if before is not None and before is not value:
            self._let_go(before)
        self._kept[name] = (loop.time(), value)
        while len(self._kept) > self._max_num:
            self._let_go(self._kept.popitem(last=False)[1][1])
        if self._sweep is None:
            self._sweep = loop.call_later(self._idle_s, self._let_go_of_idle)

    def pop(self, name: K) -> V | None:
        """The caller's from now on, who may `put` it back; None where it is not kept."""
        found = self._kept.pop(name, None)
        return None if found is None else found[1]

    def use(self, name: K) -> V | None:
        """It was used just now, and stays; None where it is not kept."""
        value = self.pop(name)
        if value is not None:
            self.put(name, value)
        return value

    def clear(self) -> None:
        if self._sweep is not None:
            self._sweep.cancel()
            self._sweep = None
        while self._kept:
            self._let_go(self._kept.popitem(last=False)[1][1])

    def _let_go_of_idle(self) -> None:
        loop = asyncio.get_running_loop()
        self._sweep = None
        for name, (used_at, value) in list(self._kept.items()):
            left_s = used_at + self._idle_s - loop.time()
            if left_s > 0:  # the others were used later
                self._sweep = loop.call_later(left_s, self._let_go_of_idle)
                return
            del self._kept[name]
            self._let_go(value)
