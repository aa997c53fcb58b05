"""How much of the page pool an adapter takes. Torch-free.

On a CPU an adapter's tensors are contiguous and the pages are accounting: it is charged by its
bytes. Invariant: the charge depends on the true ranks alone.
"""

from __future__ import annotations


def num_pages(num_bytes: int, page_bytes: int) -> int:
    """Whole pages that hold `num_bytes`; an adapter takes at least one."""
    return max(1, -(-num_bytes // page_bytes))
