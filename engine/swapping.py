"""Preempted sequences whose pages wait on the host. Holds no tensors.

What only the victim holds is copied out; blocks that others run on stay where they are and are
found again by their keys, or computed again. Copies run beside the model's work: while one is under
way it holds its pages itself, under a name of its own, whatever becomes of the sequence meanwhile.
Knows nothing of who is preempted or why.

Invariants: a page that is copied, in either direction, is free only after the copy is done; the
host's bytes of a sequence are taken from the moment when its copy begins until it is back, or
nobody wants it any more.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from collections.abc import Sequence as Many
from dataclasses import dataclass
from typing import Any, Protocol

import structlog

from engine.config import Preemption
from engine.host_tier import HostTier
from engine.page_pool import PagePool
from engine.policy import choose_way
from engine.prefix_cache import PrefixCache
from engine.sequence import Sequence
from engine.speeds import Speeds

log = structlog.get_logger()

CopyName = tuple[str, int]


class Transfer(Protocol):
    """A copy of pages between the device and the host."""

    def is_done(self) -> bool: ...

    @property
    def seconds(self) -> float:
        """How long the copy itself took, once it is done."""


class HostCopy(Protocol):
    """Pages on the host, as a runner keeps them; complete once `done`."""

    @property
    def done(self) -> Transfer: ...


class PageMover(Protocol):
    """Moves pages beside the steps. Where it raises, it has begun nothing."""

    def swap_out(self, pages: Many[int]) -> HostCopy:
        """Begin to copy `pages` to the host, as the steps launched so far leave them."""

    def swap_in(self, copy: Any, pages: Many[int]) -> Transfer:
        """Begin to write all pages of a complete copy of its own, in order, to `pages`."""


@dataclass(frozen=True, slots=True)
class Saved:
    """A sequence's first `num_tokens` tokens but for those in the blocks before `first_block`."""

    name: CopyName
    copy: HostCopy
    first_block: int
    num_tokens: int
    num_bytes: int


@dataclass(slots=True)
class _Transit:
    """A copy under way; `pages` are held under `name`."""

    name: CopyName
    sequence: Sequence
    pages: list[int]
    num_bytes: int
    transfer: Transfer
    frees_host: bool
    """Whether nobody wants what is on the host when it is done."""


class Swapping:
    """Moves sequences of one pool to the host and back."""

    def __init__(
        self,
        pool: PagePool,
        cache: PrefixCache,
        tier: HostTier[Any],
        mover: PageMover,
        speeds: Speeds,
        *,
        preemption: Preemption,
        block_size: int,
        page_bytes: int,
    ) -> None:
        self._pool = pool
        self._cache = cache
        self._tier = tier
        self._mover = mover
        self._speeds = speeds
        self._preemption = preemption
        self._block_size = block_size
        self._page_bytes = page_bytes
        self._saved: dict[Sequence, Saved] = {}
        self._transits: list[_Transit] = []
        self._num_copies = 0
        self.num_preempted = 0
        self.num_saved = 0
        self.num_restored = 0

    def save(self, sequence: Sequence) -> None:
        """Begin to copy to the host what `sequence`, which is about to give its pages back, alone
        has computed; nothing where computing it again is the better way, or the only one."""
        assert sequence not in self._saved and not self.is_moving(sequence)
        self.num_preempted += 1
        num_tokens = sequence.num_computed_tokens
        first_block, pages = self._own_pages(sequence)
        num_bytes = len(pages) * self._page_bytes
        num_own = num_tokens - first_block * self._block_size
        if not pages or not self._tier.can_hold(num_bytes):
            return
        if choose_way(self._preemption, num_own, num_bytes, self._speeds) == "recompute":
            return
        try:
            copy = self._mover.swap_out(pages)
        except (MemoryError, RuntimeError):  # the host has less room than it was said to have
            log.exception("swap_out_failed", request_id=sequence.request_id, num_bytes=num_bytes)
            return
        self._num_copies += 1
        saved = Saved(("copy", self._num_copies), copy, first_block, num_tokens, num_bytes)
        self._tier.hold(saved.name, num_bytes)
        self._saved[sequence] = saved
        self._cache.forget(pages)
        self._begin(saved, sequence, pages, copy.done, frees_host=False)
        self.num_saved += 1

    def find(self, sequence: Sequence, num_matched: int) -> Saved | None:
        """What was saved of `sequence`, if it goes on from its first `num_matched` blocks, which
        are in the pool, and has more than those."""
        saved = self._saved.get(sequence)
        if saved is None or saved.first_block > num_matched:
            return None
        return saved if saved.num_tokens > num_matched * self._block_size else None

    def restore(self, sequence: Sequence, pages: list[int]) -> bool:
        """Begin to write what was saved to `pages`, which `sequence` holds. It runs when they are
        filled (`is_moving`). False where that failed, and the tokens are to be computed again."""
        saved = self._saved[sequence]
        num_pages = saved.num_bytes // self._page_bytes
        try:
            transfer = self._mover.swap_in(saved.copy, pages[:num_pages])
        except (MemoryError, RuntimeError):
            log.exception("swap_in_failed", request_id=sequence.request_id)
            self.forget(sequence)
            return False
        del self._saved[sequence]
        self._begin(saved, sequence, pages[:num_pages], transfer, frees_host=True)
        self.num_restored += 1
        return True

    def forget(self, sequence: Sequence) -> None:
        """Free the host's bytes of a sequence that will not need them; at once, unless they are
        being written."""
        saved = self._saved.pop(sequence, None)
        if saved is None:
            return
        for transit in self._transits:
            if transit.name == saved.name:
                transit.frees_host = True
                return
        self._tier.free(saved.name)

    def land(self) -> None:
        """Take note of the copies that are done. Never blocks."""
        done = [transit for transit in self._transits if transit.transfer.is_done()]
        for transit in done:
            self._transits.remove(transit)
            self._speeds.observe_link(transit.num_bytes, transit.transfer.seconds)
            self._pool.free_cold(self._pool.release(transit.pages, transit.name))
            if transit.frees_host:
                self._tier.free(transit.name)

    def is_moving(self, sequence: Sequence) -> bool:
        """Whether a copy of its pages is under way: until then it can neither run nor go."""
        return any(transit.sequence is sequence for transit in self._transits)

    @property
    def is_busy(self) -> bool:
        return bool(self._transits)

    @property
    def num_on_host(self) -> int:
        """Sequences whose pages wait on the host, or are on their way there."""
        return len(self._saved)

    @property
    def num_leaving_pages(self) -> int:
        """Pages that are free as soon as the copies under way are done."""
        pages = (page for transit in self._transits for page in transit.pages)
        return sum(self._pool.num_holders(page) == 1 for page in pages)

    def owners(self) -> Iterator[tuple[Hashable, list[int]]]:
        """Who holds which pages, for `PagePool.check_integrity`."""
        for transit in self._transits:
            yield transit.name, transit.pages

    def check_integrity(self, waiting: Many[Sequence]) -> None:
        """Assert that only sequences that wait have pages on the host, and the bytes are right."""
        assert self._saved.keys() <= set(waiting), "saved for nobody who waits"
        names = {saved.name for saved in self._saved.values()}
        num_bytes = sum(saved.num_bytes for saved in self._saved.values())
        num_bytes += sum(each.num_bytes for each in self._transits if each.name not in names)
        assert self._tier.num_held_bytes == num_bytes, "the host's bytes are off"
        self._tier.check_integrity()

    def _own_pages(self, sequence: Sequence) -> tuple[int, list[int]]:
        """The computed blocks after the last one that others hold: (index of the first, pages)."""
        num_blocks = -(-sequence.num_computed_tokens // self._block_size)
        table = sequence.block_table[:num_blocks]
        first = num_blocks
        while first > 0 and self._pool.num_holders(table[first - 1]) == 1:
            first -= 1
        return first, table[first:]

    def _begin(
        self,
        saved: Saved,
        sequence: Sequence,
        pages: list[int],
        transfer: Transfer,
        *,
        frees_host: bool,
    ) -> None:
        self._pool.share(pages, saved.name)
        self._transits.append(
            _Transit(saved.name, sequence, pages, saved.num_bytes, transfer, frees_host)
        )
