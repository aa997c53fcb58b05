"""What the pages of a stub engine hold: hashes in the place of K and V, and adapters.

The hash at a position is made from that of the position before it and the token, the first from the
adapter: so it stands for the whole prefix, as K and V do. Knows nothing of steps. Invariant: a
page that is read holds what its reader needs, or `MisuseError` is raised.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass, field
from hashlib import sha256

MASK = (1 << 64) - 1


class MisuseError(BaseException):
    """A page did not hold what it must. The core answers an Exception, so this is none."""


@dataclass(slots=True)
class Block:
    """Hashes of the tokens in one page. parent: the hash before the first of them."""

    parent: int
    hashes: list[int] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class AdapterPart:
    """A page of an adapter."""

    adapter: Hashable


class PageMemory:
    """Pages by their number. What is not here was never written, or is poisoned."""

    def __init__(self, block_size: int) -> None:
        self._block_size = block_size
        self._pages: dict[int, Block | AdapterPart] = {}

    def prefix(self, table: Sequence[int], num_tokens: int, root: int) -> int:
        """The hash of the first `num_tokens` tokens, after a look at every page they are in."""
        found = root
        for begin in range(0, num_tokens, self._block_size):
            block = self._pages.get(table[begin // self._block_size])
            num_wanted = min(self._block_size, num_tokens - begin)
            if not isinstance(block, Block) or block.parent != found:
                raise MisuseError("a page that holds something else")
            if len(block.hashes) < num_wanted:
                raise MisuseError("a token that was never computed")
            found = block.hashes[num_wanted - 1]
        return found

    def append(self, table: Sequence[int], position: int, parent: int, token_id: int) -> int:
        """Write the token at `position`, and forget what the page held after it."""
        page, offset = table[position // self._block_size], position % self._block_size
        if offset == 0:
            self._pages[page] = Block(parent)
        block = self._pages[page]
        if not isinstance(block, Block) or len(block.hashes) < offset:
            raise MisuseError("a token before it was never computed")
        found = chained(parent, token_id)
        block.hashes[offset:] = [found]
        return found

    def install(self, adapter: Hashable, pages: Iterable[int]) -> None:
        for page in pages:
            self._pages[page] = AdapterPart(adapter)

    def check_adapter(self, adapter: Hashable, pages: Iterable[int]) -> None:
        if any(self._pages.get(page) != AdapterPart(adapter) for page in pages):
            raise MisuseError("the adapter is gone")

    def poison(self, pages: Iterable[int]) -> None:
        for page in pages:
            self._pages.pop(page, None)

    def read(self, pages: Iterable[int]) -> list[Block | AdapterPart | None]:
        """A copy of whole pages; None for one that nobody wrote."""
        return [_copied(self._pages.get(page)) for page in pages]

    def write(self, pages: Sequence[int], content: Sequence[Block | AdapterPart | None]) -> None:
        for page, each in zip(pages, content, strict=True):
            self.poison([page])
            if each is not None:
                self._pages[page] = _copied(each)


def root_of(adapter_digest: str | None) -> int:
    """The hash before the first token."""
    return int.from_bytes(sha256((adapter_digest or "base").encode()).digest()[:8], "little")


def chained(parent: int, token_id: int) -> int:
    """The hash of a prefix that is one token longer."""
    return _mixed(parent + (token_id + 1) * 0x9E3779B97F4A7C15)


def _mixed(value: int) -> int:
    """The finaliser of SplitMix64 (Steele et al. 2014)."""
    value &= MASK
    value = (value ^ (value >> 30)) * 0xBF58476D1CE4E5B9 & MASK
    value = (value ^ (value >> 27)) * 0x94D049BB133111EB & MASK
    return value ^ (value >> 31)


def _copied(page: Block | AdapterPart | None) -> Block | AdapterPart | None:
    return Block(page.parent, list(page.hashes)) if isinstance(page, Block) else page
