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


# Paged attention, by bytes of an element. BLOCK_M: rows of a tile (tokens times query heads of one
# KV head), BLOCK_N: KV positions a turn; it divides `attention_plan.GRANULE`.
ATTENTION_DECODE: Mapping[int, LaunchConfig] = MappingProxyType(
    {
        2: LaunchConfig({"BLOCK_M": 16, "BLOCK_N": 64}, num_warps=4, num_stages=2),
        4: LaunchConfig({"BLOCK_M": 16, "BLOCK_N": 32}, num_warps=4, num_stages=2),
    }
)
ATTENTION_PREFILL: Mapping[int, LaunchConfig] = MappingProxyType(
    {
        2: LaunchConfig({"BLOCK_M": 64, "BLOCK_N": 32}, num_warps=4, num_stages=2),
        4: LaunchConfig({"BLOCK_M": 32, "BLOCK_N": 64}, num_warps=8, num_stages=2),
    }
)
ATTENTION_MERGE = LaunchConfig({"BLOCK_PARTS": 32})
# Programs that keep the memory of one multiprocessor busy.
ATTENTION_PROGRAMS_PER_SM = 2

# BLOCK_T: tokens of one head that a program turns.
ROPE = LaunchConfig({"BLOCK_T": 8}, num_warps=1)
# Eight-byte words: 8 KiB a program.
COPY_PAGES = LaunchConfig({"BLOCK_WORDS": 1024})


def rms_norm_config(block_columns: int) -> LaunchConfig:
    """A row a program: the warps that give a thread at most 16 elements, up to 16 of them."""
    return LaunchConfig(num_warps=min(max(block_columns // 512, 1), 16))


SILU_AND_MUL = LaunchConfig({"BLOCK_COLUMNS": 2048}, num_warps=4)
PENALTIES = LaunchConfig({"BLOCK_TOKENS": 4096}, num_warps=8)
# A row of logits a program, which walks the vocabulary; several passes, from the L2 cache.
SAMPLE = LaunchConfig({"BLOCK_TOKENS": 8192}, num_warps=32)
LOG_PROBS = LaunchConfig({"BLOCK_TOKENS": 8192}, num_warps=32)
# The batch-invariant linear, by bytes of an element. One shape for every batch: that is its point.
TILE_LINEAR: Mapping[int, LaunchConfig] = MappingProxyType(
    {
        2: LaunchConfig({"BLOCK_M": 64, "BLOCK_N": 64, "BLOCK_K": 64}, num_warps=4, num_stages=4),
        4: LaunchConfig({"BLOCK_M": 32, "BLOCK_N": 64, "BLOCK_K": 32}, num_warps=4, num_stages=3),
    }
)

# LoRA, by rows of a tile and bytes of an element. BLOCK_R: rank vectors a program reads at a time.
LORA_SHRINK: Mapping[tuple[int, int], LaunchConfig] = MappingProxyType(
    {
        (16, 2): LaunchConfig({"BLOCK_R": 16, "BLOCK_K": 256}, num_warps=4, num_stages=3),
        (64, 2): LaunchConfig({"BLOCK_R": 32, "BLOCK_K": 128}, num_warps=4, num_stages=3),
        (16, 4): LaunchConfig({"BLOCK_R": 16, "BLOCK_K": 128}, num_warps=4, num_stages=3),
        (64, 4): LaunchConfig({"BLOCK_R": 16, "BLOCK_K": 64}, num_warps=4, num_stages=3),
    }
)
LORA_EXPAND: Mapping[tuple[int, int], LaunchConfig] = MappingProxyType(
    {
        (16, 2): LaunchConfig({"BLOCK_R": 16, "BLOCK_N": 128}, num_warps=4, num_stages=2),
        (64, 2): LaunchConfig({"BLOCK_R": 16, "BLOCK_N": 64}, num_warps=4, num_stages=2),
        (16, 4): LaunchConfig({"BLOCK_R": 16, "BLOCK_N": 128}, num_warps=4, num_stages=2),
        (64, 4): LaunchConfig({"BLOCK_R": 16, "BLOCK_N": 64}, num_warps=4, num_stages=2),
    }
)
# The forms beside LoRA. BLOCK_N divides `PageFormat.piece_columns`.
ROW_VECTOR = LaunchConfig({"BLOCK_N": 256}, num_warps=4)
REPLACE_ROWS = LaunchConfig({"BLOCK_H": 1024}, num_warps=4)
EMBEDDING_LORA = LaunchConfig({"BLOCK_R": 16, "BLOCK_H": 256}, num_warps=4)
OVERRIDE_LINEAR: Mapping[int, LaunchConfig] = MappingProxyType(
    {
        2: LaunchConfig({"BLOCK_N": 64, "BLOCK_K": 64}, num_warps=4, num_stages=3),
        4: LaunchConfig({"BLOCK_N": 64, "BLOCK_K": 32}, num_warps=4, num_stages=2),
    }
)
