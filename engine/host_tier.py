"""What left the page pool and stays in the host's memory, up to so many bytes. Holds no tensors.

Two kinds share the bytes: what is *held*, because a sequence that was preempted needs it to go on,
and what is only *kept*, because it may be wanted again (an adapter that left the pool). Knows
nothing of what the things are. Invariants: the bytes of all things never exceed the limit; a held
thing stays until it is freed; a kept one makes room for whatever else comes, the one that was used
least recently first.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable
from dataclasses import dataclass
from typing import Generic, TypeVar

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class _Kept(Generic[T]):
    content: T
    num_bytes: int


class HostTier(Generic[T]):
    """T: what is kept; of held things only the bytes are known here, their owner has them."""

    def __init__(self, max_bytes: int) -> None:
        self.max_bytes = max_bytes
        self._held: dict[Hashable, int] = {}
        self._kept: OrderedDict[Hashable, _Kept[T]] = OrderedDict()
        """The least recently used first."""
        self._num_held_bytes = 0
        self._num_kept_bytes = 0

    @property
    def num_held_bytes(self) -> int:
        return self._num_held_bytes

    @property
    def num_kept_bytes(self) -> int:
        return self._num_kept_bytes

    def can_hold(self, num_bytes: int) -> bool:
        """Whether there is room beside what is held; what is kept would go."""
        return self._num_held_bytes + num_bytes <= self.max_bytes

    def hold(self, key: Hashable, num_bytes: int) -> None:
        """Take bytes until `free`. The caller has asked `can_hold`."""
        assert self.can_hold(num_bytes), "hold without can_hold"
        assert key not in self._held, f"{key!r} is held already"
        self._held[key] = num_bytes
        self._num_held_bytes += num_bytes
        self._shrink()

    def free(self, key: Hashable) -> None:
        """Give a held thing's bytes back."""
        self._num_held_bytes -= self._held.pop(key)

    def keep(self, key: Hashable, content: T, num_bytes: int) -> bool:
        """Keep `content` while there is room; False where it does not fit beside what is held.

        In the place of what the key had.
        """
        self.drop(key)
        if not self.can_hold(num_bytes):
            return False
        self._kept[key] = _Kept(content, num_bytes)
        self._num_kept_bytes += num_bytes
        self._shrink()
        return True

    def find(self, key: Hashable) -> T | None:
        """What is kept under `key`, which is the most recently used from now on."""
        if key not in self._kept:
            return None
        self._kept.move_to_end(key)
        return self._kept[key].content

    def drop(self, key: Hashable) -> None:
        """Forget what is kept under `key`, if anything is."""
        kept = self._kept.pop(key, None)
        if kept is not None:
            self._num_kept_bytes -= kept.num_bytes

    def check_integrity(self) -> None:
        assert self._num_held_bytes == sum(self._held.values()), "held bytes are off"
        kept = sum(each.num_bytes for each in self._kept.values())
        assert self._num_kept_bytes == kept, "kept bytes are off"
        assert self._num_held_bytes + kept <= self.max_bytes, "more than the host has for us"

    def _shrink(self) -> None:
        while self._num_held_bytes + self._num_kept_bytes > self.max_bytes:
            self.drop(next(iter(self._kept)))
