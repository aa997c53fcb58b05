"""What a sequence holds while it runs: pages for its tokens, and its adapter. Holds no tensors.

Knows nothing of who runs when. Invariants: a sequence has both or neither; what it holds of
others' blocks it never writes, since it computes at least its last token and whole blocks precede
it.
"""

from __future__ import annotations

from engine.eviction import Room
from engine.messages import EngineError
from engine.page_pool import PagePool
from engine.prefix_cache import CacheTenant, PrefixCache
from engine.residency import Residency
from engine.sequence import Sequence
from engine.speeds import Speeds
from engine.swapping import Swapping


class Holdings:
    """Takes from the one pool for sequences, and gives back."""

    def __init__(
        self,
        pool: PagePool,
        residency: Residency,
        cache: PrefixCache,
        swapping: Swapping,
        speeds: Speeds,
        block_size: int,
        max_model_len: int,
    ) -> None:
        self.room = Room(pool, cache, residency)
        self._pool = pool
        self._residency = residency
        self._cache = cache
        self._swapping = swapping
        self._speeds = speeds
        self._block_size = block_size
        self._max_model_len = max_model_len
        self._num_holders = 0

    def acquire(self, sequence: Sequence, max_num_tokens: int) -> bool:
        """Take the adapter, the blocks of the prefix that are cached, and pages for the tokens
        after them: those that were saved when it was preempted, which begin to come back, and
        `max_num_tokens` more at most. Nothing where there is no room for all."""
        adapter, owner = sequence.adapter, sequence.owner
        keys = _usable_keys(sequence, self._block_size)
        matched = self._cache.match(keys)
        begin = len(matched) * self._block_size
        if saved := self._swapping.find(sequence, len(matched)):
            matched, begin = matched[: saved.first_block], saved.num_tokens
        end = min(sequence.num_tokens, begin + max_num_tokens)
        num_blocks = self._num_blocks(end) - len(matched)
        needed = num_blocks
        if adapter is not None:
            needed += self._residency.num_missing_pages(adapter)
        if not self._can_make_room(sequence, needed):
            return False
        self._cache.acquire(matched, owner)
        # Some of what could have left may be what is needed.
        if not self._make_room(sequence, needed):
            self._cache.release(matched, owner, self._block_cost_s)
            return False
        if adapter is not None:
            sequence.weights = self._residency.acquire(adapter)
        self._num_holders += 1
        pages = self._pool.allocate(num_blocks, owner)
        if saved is None:
            self._swapping.forget(sequence)
        elif not self._swapping.restore(sequence, pages):
            begin = len(matched) * self._block_size
        sequence.block_table = matched + pages
        sequence.num_computed_tokens = begin
        sequence.num_known_blocks = len(matched)
        sequence.is_in_place = False
        num_wanted = sequence.num_prompt_tokens + sequence.request.sampling.max_tokens
        sequence.max_num_tokens = min(num_wanted, self.max_num_tokens(sequence))
        self._cache.announce(keys[len(matched) :], owner)
        self._count_hits(sequence, len(matched) * self._block_size)
        return True

    def extend(self, sequence: Sequence, num_tokens: int) -> bool:
        """Take pages for the next `num_tokens`, evicting what is cold where needed."""
        missing = self._num_missing(sequence, num_tokens)
        if missing > 0:
            if missing > self._pool.num_free and not self._make_room(sequence, missing):
                return False
            sequence.block_table += self._pool.allocate(missing, sequence.owner)
        return True

    def has_room_coming(self, sequence: Sequence, num_tokens: int) -> bool:
        """Whether `extend`, which fails now, can when the copies under way have freed pages."""
        return self._swapping.num_leaving_pages >= self.room.num_lacking(
            self._num_missing(sequence, num_tokens),
            sequence.request.tenant_id,
            keep=sequence.adapter,
            force=self._is_alone(sequence),
        )

    def suspend(self, sequence: Sequence) -> None:
        """Give back all that it holds; what it has computed is saved, or to be computed again."""
        self._swapping.save(sequence)
        self.release(sequence)
        sequence.num_computed_tokens = 0

    def release(self, sequence: Sequence) -> None:
        """Give back all that it holds. No step in flight may use it."""
        assert sequence.num_in_flight == 0, "a step in flight uses these pages"
        self._withdraw(sequence)
        self._cache.release(sequence.block_table, sequence.owner, self._block_cost_s)
        sequence.block_table = []
        sequence.num_known_blocks = 0
        sequence.weights = None
        self._num_holders -= 1
        if sequence.adapter is not None:
            self._residency.release(sequence.adapter)

    def publish(self, sequence: Sequence) -> None:
        """Let others share the blocks that steps which have landed filled."""
        num_full = sequence.num_landed_tokens // self._block_size
        keys = sequence.block_keys
        if keys is None or num_full <= sequence.num_known_blocks:
            return
        keys.extend(sequence.token_ids, num_full * self._block_size)
        for index in range(sequence.num_known_blocks, num_full):
            tenant: CacheTenant = None if index < keys.num_public else sequence.request.tenant_id
            self._cache.insert(keys.keys[index], sequence.block_table[index], tenant)
        sequence.num_known_blocks = num_full

    def distrust(self, sequence: Sequence) -> None:
        """Its steps went wrong: nothing that it holds is shared with anybody from now on."""
        self._withdraw(sequence)
        self._cache.forget(sequence.block_table)
        sequence.block_keys = None

    def awaits_prefix(self, sequence: Sequence) -> bool:
        """Whether a running sequence is about to fill the block that it would compute first."""
        if not self._cache.has_under_way:
            return False
        if sequence.awaited_key is None or not self._cache.is_under_way(sequence.awaited_key):
            keys = _usable_keys(sequence, self._block_size)
            num_matched = len(self._cache.match(keys))
            following = keys[num_matched:]
            is_awaited = bool(following) and self._cache.is_under_way(following[0])
            is_awaited = is_awaited and self._swapping.find(sequence, num_matched) is None
            sequence.awaited_key = following[0] if is_awaited else None
        return sequence.awaited_key is not None

    def never_fits(self, sequence: Sequence) -> EngineError | None:
        """Alone in the pool, there must be room for the adapter and for one more token."""
        room = self.max_num_tokens(sequence)
        if sequence.num_tokens < room:
            return None
        if room == 0:
            message = "The adapter leaves no page of this engine's pool to anything else."
            return EngineError(code="adapter_too_large", message=message)
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
        assert sequence.num_known_blocks <= len(sequence.block_table)
        if sequence.block_keys is not None:
            keys = sequence.block_keys.keys
            for page, key in zip(sequence.block_table, keys, strict=False):
                assert self._cache.owner_key(page) in (None, key), "another one's block"

    def _num_missing(self, sequence: Sequence, num_tokens: int) -> int:
        needed = self._num_blocks(sequence.num_computed_tokens + num_tokens)
        return needed - len(sequence.block_table)

    def _withdraw(self, sequence: Sequence) -> None:
        if sequence.block_keys is not None:
            untold = sequence.block_keys.keys[sequence.num_known_blocks :]
            self._cache.withdraw(untold, sequence.owner)

    def _can_make_room(self, sequence: Sequence, needed: int) -> bool:
        return self.room.can_make(
            needed,
            sequence.request.tenant_id,
            keep=sequence.adapter,
            force=self._is_alone(sequence),
        )

    def _make_room(self, sequence: Sequence, needed: int) -> bool:
        return self.room.make(
            needed,
            sequence.request.tenant_id,
            keep=sequence.adapter,
            force=self._is_alone(sequence),
        )

    def _is_alone(self, sequence: Sequence) -> bool:
        """Nobody else holds pages: it takes all that is cold, so that something always runs."""
        return self._num_holders == (1 if sequence.block_table else 0)

    def _count_hits(self, sequence: Sequence, num_hits: int) -> None:
        if sequence.block_keys is None:
            return
        self._cache.num_query_tokens += sequence.num_tokens
        self._cache.num_hit_tokens += num_hits
        if sequence.num_cached_tokens is None:
            sequence.num_cached_tokens = min(num_hits, sequence.num_prompt_tokens)

    @property
    def _block_cost_s(self) -> float:
        return self._block_size / self._speeds.prefill_tokens_per_s

    def _num_blocks(self, num_tokens: int) -> int:
        return -(-num_tokens // self._block_size)


def _usable_keys(sequence: Sequence, block_size: int) -> list[bytes]:
    """Of the blocks before the last token, which is always computed."""
    if sequence.block_keys is None:
        return []
    return sequence.block_keys.keys[: (sequence.num_tokens - 1) // block_size]
