"""What a runner of a bench has where no page is swapped or poisoned: parts that nobody may call.

Invariant: a bench that does cause a swap fails at once, instead of measuring something else.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, NoReturn


class StillPages:
    """The page side of `engine.core.Runner`, for a pool that no sequence ever outgrows."""

    max_in_flight = 1

    def poison_pages(self, pages: Collection[int]) -> NoReturn:
        raise NotImplementedError  # only the debug mode asks for it

    def swap_out(self, pages: Collection[int]) -> NoReturn:
        raise NotImplementedError  # nobody is preempted

    def swap_in(self, copy: Any, pages: Collection[int]) -> NoReturn:
        raise NotImplementedError  # so nobody comes back either
