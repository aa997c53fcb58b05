"""Launch settings as data: block sizes, warps and pipeline stages per kernel.

Knows no kernel's code. Invariant: a launch and its ahead-of-time variant read the same entry, so
what the gate has compiled is what runs.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

_NO_BLOCKS: Mapping[str, int] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class LaunchConfig:
    """`blocks`: values of the kernel's `BLOCK_*` constants, by name.

    `num_stages` is what Triton is asked for, not what it buffers: where a page id feeds an
    address it buffers once for 2 to 4, twice for 5 and 6, three times for 7 and 8.
    """

    blocks: Mapping[str, int] = field(default_factory=lambda: _NO_BLOCKS)
    num_warps: int = 4
    num_stages: int = 2

    def launch_kwargs(self) -> dict[str, int]:
        """`kernel[grid](..., **config.launch_kwargs())`."""
        return {**self.blocks, "num_warps": self.num_warps, "num_stages": self.num_stages}
