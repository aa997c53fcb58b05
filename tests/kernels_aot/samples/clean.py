"""Two kernels that may ship: a copy, and a product on tensor cores."""

from __future__ import annotations

import triton
import triton.language as tl

from kernels.gpu.launch import AotVariant


@triton.jit
def copy_kernel(x_ptr, y_ptr, num_elements, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + at, mask=at < num_elements, other=0.0)
    tl.store(y_ptr + at, x, mask=at < num_elements)


@triton.jit
def product_kernel(a_ptr, b_ptr, out_ptr, stride, SIZE: tl.constexpr):
    at = tl.arange(0, SIZE)
    cells = at[:, None] * stride + at[None, :]
    product = tl.dot(tl.load(a_ptr + cells), tl.load(b_ptr + cells))
    tl.store(out_ptr + cells, product.to(out_ptr.dtype.element_ty))


def aot_variants() -> list[AotVariant]:
    return [
        AotVariant(
            name="copy",
            kernel=copy_kernel,
            signature={
                "x_ptr": "*bf16",
                "y_ptr": "*bf16",
                "num_elements": "i32",
                "BLOCK": "constexpr",
            },
            constexprs={"BLOCK": 1024},
            divisible=("x_ptr", "y_ptr", "num_elements"),
            num_warps=4,
            num_stages=1,
            forbids_atomics=True,
        ),
        AotVariant(
            name="product",
            kernel=product_kernel,
            signature={
                "a_ptr": "*bf16",
                "b_ptr": "*bf16",
                "out_ptr": "*bf16",
                "stride": "i32",
                "SIZE": "constexpr",
            },
            constexprs={"SIZE": 64},
            divisible=("a_ptr", "b_ptr", "out_ptr", "stride"),
            num_warps=4,
            num_stages=2,
            wants_dot=True,
        ),
    ]
