"""What a block of K and V is known by: everything that its content depends on.

The key of a block is `SHA-256(parent key || u32 token ids)`. The first block's parent is the root:
a digest of the tenant's salt, the adapter's digest or "base", and the base's fingerprint, each with
its length before it. So equal keys mean equal content, and neither tenant nor adapter can meet
another's blocks. Only blocks of a prefix that the operator has named are known by a root without
a salt, and only on the base model; what follows them has the tenant's salt again. Knows nothing of
pages. Pure, so that it can run on any thread.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Iterable, Sequence
from struct import Struct

from engine.messages import AdapterRef, EngineRequest

MAX_TOKEN_ID = (1 << 32) - 1
PUBLIC_SALT = b""
"""No tenant's: theirs have 32 bytes."""


class BlockHasher:
    """Makes keys for one engine.

    secret: what tenants' salts are derived from; known to nobody else.
    shared_prefixes: token ids with which prompts of any tenant may begin, and share the blocks.
    """

    def __init__(
        self,
        block_size: int,
        fingerprint: str,
        secret: bytes,
        shared_prefixes: Iterable[Sequence[int]] = (),
    ) -> None:
        self.block_size = block_size
        self._fingerprint = fingerprint.encode()
        self._secret = secret
        self._shared_prefixes = [list(prefix) for prefix in shared_prefixes]
        self._tokens = Struct(f"<{block_size}I")

    def keys(self, request: EngineRequest) -> BlockKeys:
        """Those of all full blocks that `request` comes with; none where an id is no token."""
        token_ids = request.prompt_token_ids + request.delivered_token_ids
        keys = BlockKeys(self, request)
        if token_ids and min(token_ids) >= 0 and max(token_ids) <= MAX_TOKEN_ID:
            keys.extend(token_ids, len(token_ids))
        return keys

    def root(self, tenant_id: str, adapter: AdapterRef | None) -> bytes:
        """What the first block of a tenant's sequence has for a parent."""
        salt = hmac.digest(self._secret, tenant_id.encode(), "sha256")
        return self._root(salt, adapter.digest if adapter is not None else "base")

    @property
    def public_root(self) -> bytes:
        return self._root(PUBLIC_SALT, "base")

    def key(self, parent: bytes, token_ids: Sequence[int]) -> bytes:
        """token_ids: those of one block."""
        return hashlib.sha256(parent + self._tokens.pack(*token_ids)).digest()

    def num_public_blocks(self, request: EngineRequest) -> int:
        """How many of a prompt's first blocks lie wholly in a prefix that tenants share."""
        if request.adapter is not None or not self._shared_prefixes:
            return 0
        return max(
            _num_equal(prefix, request.prompt_token_ids) // self.block_size
            for prefix in self._shared_prefixes
        )

    def _root(self, salt: bytes, model: str) -> bytes:
        return _digest(salt, model.encode(), self._fingerprint)


class BlockKeys:
    """The keys of one sequence's full blocks so far, first to last."""

    __slots__ = ("_hasher", "_root", "keys", "num_public")

    def __init__(self, hasher: BlockHasher, request: EngineRequest) -> None:
        self.keys: list[bytes] = []
        self.num_public = hasher.num_public_blocks(request)
        self._hasher = hasher
        self._root = hasher.root(request.tenant_id, request.adapter)

    def extend(self, token_ids: Sequence[int], num_tokens: int) -> None:
        """Add the keys of the blocks that the first `num_tokens` of `token_ids` have filled."""
        size = self._hasher.block_size
        for index in range(len(self.keys), num_tokens // size):
            tokens = token_ids[index * size : (index + 1) * size]
            self.keys.append(self._hasher.key(self._parent(index), tokens))

    def _parent(self, index: int) -> bytes:
        before = self.keys[index - 1] if index > 0 else None
        if index < self.num_public:
            return before or self._hasher.public_root
        if index > self.num_public and before is not None:
            return before
        # NOTE: the first block of a tenant's own, after public ones too, has the tenant's salt.
        return self._root if before is None else _digest(self._root, before)


def _digest(*fields: bytes) -> bytes:
    return hashlib.sha256(
        b"".join(len(each).to_bytes(8, "little") + each for each in fields)
    ).digest()


def _num_equal(one: Sequence[int], other: Sequence[int]) -> int:
    """Length of the common beginning."""
    pairs = enumerate(zip(one, other, strict=False))
    differing = (index for index, (mine, yours) in pairs if mine != yours)
    return next(differing, min(len(one), len(other)))
