"""What the engine knows of an adapter's weights: the form on the host, and the one in pages.

Torch-free. Invariant: the form on the host never changes, and can be installed as often as wanted.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol


class AdapterWeights(Protocol):
    """An adapter that has pages. On a CPU: `lora.weights.LoraWeights`."""

    @property
    def for_kernels(self) -> Any:
        """What `LoraSegment.weights` holds; once `is_installed`."""

    @property
    def is_installed(self) -> bool:
        """Whether a step that starts now may read the pages."""


class HostWeights(Protocol):
    """What a loader made of an adapter's files. On a CPU: `lora.weights.LoraWeights`, too."""

    @property
    def num_bytes(self) -> int:
        """Of the host's memory."""

    @property
    def is_copied(self) -> bool:
        """Whether `install` copies. Where not, pages of the pool are its charge while it has any,
        and no other memory is."""

    def num_pages(self, page_bytes: int) -> int:
        """Pages that it takes from the pool."""

    def install(self, pages: Sequence[int]) -> AdapterWeights:
        """Begin to fill `pages`, which are the adapter's from now on. Never blocks."""
