"""Kernels that must not ship, each for one reason."""

from __future__ import annotations

import dataclasses

import triton
import triton.language as tl

from kernels.gpu.launch import AotVariant
from tests.kernels_aot.samples import clean


@triton.jit
def sum_kernel(x_ptr, sum_ptr, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.atomic_add(sum_ptr, tl.sum(tl.load(x_ptr + at)))


def aot_variants() -> list[AotVariant]:
    copy, product = clean.aot_variants()
    return [
        # A 128 x 128 accumulator in two warps needs every register that a thread has, and more.
        dataclasses.replace(product, name="spills", constexprs={"SIZE": 128}, num_warps=2),
        # No address is promised to be a multiple of 16.
        dataclasses.replace(copy, name="narrow", divisible=()),
        AotVariant(
            name="atomic",
            kernel=sum_kernel,
            signature={"x_ptr": "*fp32", "sum_ptr": "*fp32", "BLOCK": "constexpr"},
            constexprs={"BLOCK": 1024},
            divisible=("x_ptr", "sum_ptr"),
            num_warps=4,
            num_stages=1,
            forbids_atomics=True,
        ),
        dataclasses.replace(copy, name="no_dot", wants_dot=True),
    ]
