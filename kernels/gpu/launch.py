"""What every Triton kernel's host side shares: sizes of grids, and what is compiled ahead.

Knows no kernel. Invariant: a kernel file's `aot_variants()` lists every form of its kernels that
ships, with the types, constants and hints of the real launch; `kernels.aot` compiles them all.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

# Triton knows from this that a load is 16 bytes wide; PyTorch's allocator aligns to 512.
DIVISIBLE_BY = 16

_TRITON_NAMES = {
    torch.float32: "fp32",
    torch.float16: "fp16",
    torch.bfloat16: "bf16",
    torch.uint8: "u8",
    torch.int8: "i8",
    torch.int32: "i32",
    torch.int64: "i64",
    torch.bool: "i1",
}


@dataclass(frozen=True)
class AotVariant:
    """One kernel in one form that ships.

    `signature`: argument name -> Triton type ("*bf16", "i32", "constexpr"), in the kernel's
    order. `constexprs`: their values. `divisible`: arguments (pointers and strides) that are
    multiples of 16 at every launch. `wants_dot`: products must be tensor-core instructions.
    `wants_wide_loads`: global reads must be 16 bytes wide somewhere in it. `forbids_atomics`:
    none may remain, so that sums have one order.
    """

    name: str
    kernel: Any
    signature: dict[str, str]
    constexprs: dict[str, Any]
    divisible: tuple[str, ...]
    num_warps: int
    num_stages: int
    wants_dot: bool = False
    wants_wide_loads: bool = True
    forbids_atomics: bool = False


def ceil_div(value: int, divisor: int) -> int:
    """How many blocks of `divisor` cover `value`."""
    return -(-value // divisor)


def round_up(value: int, multiple: int) -> int:
    return ceil_div(value, multiple) * multiple


def next_power_of_2(value: int) -> int:
    """The least power of two that is not below `value`; 1 for 0 and 1."""
    return 1 << max(value - 1, 0).bit_length()


def pointer_type(dtype: torch.dtype) -> str:
    """What `AotVariant.signature` calls a pointer to `dtype`: `*bf16`."""
    return f"*{_TRITON_NAMES[dtype]}"
