"""What a sequence holds while it runs: pages for its tokens, and its adapter. Holds no tensors.

Knows nothing of who runs when. Invariant: a sequence has both or neither.
"""

from __future__ import annotations

from engine.messages import EngineError
from engine.page_pool import PagePool
from engine.residency import Residency
from engine.sequence import Sequence


class Holdings:
    """Takes from the one pool for sequences, and gives back."""

    def __init__(
        self, pool: PagePool, residency: Residency, block_size: int, max_model_len: int
    ) -> None:
        self._pool = pool
        self._residency = residency
        self._block_size = block_size
        self._max_model_len = max_model_len

    def acquire(self, sequence: Sequence, num_tokens: int) -> bool:
        """Take the adapter and pages for the first `num_tokens`, if there is room for both."""
        num_blocks, adapter = self._num_blocks(num_tokens), sequence.adapter
        needed = num_blocks
        if adapter is not None:
            needed += self._residency.num_missing_pages(adapter)
        if not self._residency.make_room(needed, keep=adapter):
            return False
        if adapter is not None:
            self._residency.acquire(adapter)
        sequence.block_table = self._pool.allocate(num_blocks, sequence.owner)
        return True

    def extend(self, sequence: Sequence, num_tokens: int) -> bool:
        """Take pages for the next `num_tokens`, evicting idle adapters where needed."""
        needed = self._num_blocks(sequence.num_computed_tokens + num_tokens)
        missing = needed - len(sequence.block_table)
        if missing > 0:
            if not self._residency.make_room(missing):
                return False
            sequence.block_table += self._pool.allocate(missing, sequence.owner)
        return True

    def release(self, sequence: Sequence) -> None:
        """Give back all that it holds. No step in flight may use it."""
        assert sequence.num_in_flight == 0, "a step in flight uses these pages"
        self._pool.free_cold(self._pool.release(sequence.block_table, sequence.owner))
        sequence.block_table = []
        if sequence.adapter is not None:
            self._residency.release(sequence.adapter)

    def never_fits(self, sequence: Sequence) -> EngineError | None:
        """Alone in the pool, there must be room for the adapter and for one more token."""
        room = self.max_num_tokens(sequence)
        if sequence.num_tokens < room:
            return None
        message = f"The prompt has {sequence.num_tokens} tokens; this engine has room for {room}"
        if sequence.adapter is not None:
            message += " beside the adapter"
        return EngineError(code="request_too_large", message=f"{message}.")

    def max_num_tokens(self, sequence: Sequence) -> int:
        """Where a sequence ends at the latest: the model's context, or all pages but its own
        adapter's."""
        num_pages = self._pool.num_pages
        if sequence.adapter is not None:
            num_pages -= self._residency.num_pages_of(sequence.adapter)
        return min(self._max_model_len, max(0, num_pages) * self._block_size)

    def check_integrity(self, sequence: Sequence) -> None:
        covered = len(sequence.block_table) * self._block_size
        assert covered >= sequence.num_computed_tokens, "a computed token has no page"

    def _num_blocks(self, num_tokens: int) -> int:
        return -(-num_tokens // self._block_size)
