"""A kernel that does not compile, and one that its module does not list."""

from __future__ import annotations

import dataclasses

import triton
import triton.language as tl

from kernels.gpu.launch import AotVariant
from tests.kernels_aot.samples import clean


@triton.jit
def mismatch_kernel(x_ptr, y_ptr, num_elements, BLOCK: tl.constexpr):
    tl.store(y_ptr + tl.arange(0, 16), tl.load(x_ptr + tl.arange(0, 32)))


@triton.jit
def forgotten_kernel(x_ptr):
    tl.store(x_ptr, 0.0)


def aot_variants() -> list[AotVariant]:
    copy, _ = clean.aot_variants()
    return [dataclasses.replace(copy, name="mismatch", kernel=mismatch_kernel)]
