"""Whole pages out of the pool and back: what swapping copies.

Knows nothing of what a page holds: it is copied as words. Invariant: pages that are not named are
neither read nor written.
"""

# mypy: disable-error-code="no-untyped-def, untyped-decorator"
from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.gpu.launch import AotVariant, ceil_div, pointer_type
from kernels.gpu.tuning import COPY_PAGES


@triton.jit
def copy_pages_kernel(
    target_ptr,
    source_ptr,
    pages_ptr,
    num_words,
    stride_target,
    stride_source,
    IS_GATHER: tl.constexpr,
    BLOCK_WORDS: tl.constexpr,
):
    """Grid (blocks of a page, n): gather: target[i] = source[pages[i]]; else the other way."""
    index = tl.program_id(1).to(tl.int64)
    page = tl.load(pages_ptr + index)
    words = tl.program_id(0) * BLOCK_WORDS + tl.arange(0, BLOCK_WORDS)
    mask = words < num_words
    source_page = page if IS_GATHER else index
    target_page = index if IS_GATHER else page
    content = tl.load(source_ptr + source_page * stride_source + words, mask=mask)
    tl.store(target_ptr + target_page * stride_target + words, content, mask=mask)


def gather_pages(pool: Tensor, pages: Tensor) -> Tensor:
    """pool [P, ...], each page contiguous; pages [n] int64 -> [n, ...]."""
    content = pool.new_empty(pages.shape[0], *pool.shape[1:])
    _copy(content, pool, pages, is_gather=True)
    return content


def scatter_pages(pool: Tensor, pages: Tensor, content: Tensor) -> None:
    """pool[pages[i]] = content[i]; the pages are distinct."""
    assert content.shape == (pages.shape[0], *pool.shape[1:]) and content.dtype == pool.dtype
    _copy(pool, content, pages, is_gather=False)


def _copy(target: Tensor, source: Tensor, pages: Tensor, *, is_gather: bool) -> None:
    if pages.shape[0] == 0:
        return
    word = _word(target, source)
    target, source = target.flatten(1).view(word), source.flatten(1).view(word)
    num_words = target.shape[1]
    block = COPY_PAGES.blocks["BLOCK_WORDS"]
    copy_pages_kernel[(ceil_div(num_words, block), pages.shape[0])](
        target,
        source,
        pages,
        num_words,
        target.stride(0),
        source.stride(0),
        IS_GATHER=is_gather,
        **COPY_PAGES.launch_kwargs(),
    )


def _word(*tensors: Tensor) -> torch.dtype:
    """The widest integer of which pages, their distances and their addresses are multiples."""
    for tensor in tensors:
        size = tensor.element_size()
        page_bytes, step = tensor[0].numel() * size, tensor.stride(0) * size
        if (page_bytes | step | tensor.data_ptr()) % torch.int64.itemsize:
            return torch.uint8
    return torch.int64


def aot_variants() -> list[AotVariant]:
    """Both directions over 8-byte words, which the pool's pages always are."""
    return [_variant(is_gather=True), _variant(is_gather=False)]


def _variant(*, is_gather: bool) -> AotVariant:
    word = pointer_type(torch.int64)
    integers = dict.fromkeys(("num_words", "stride_target", "stride_source"), "i32")
    constexprs = {"IS_GATHER": is_gather, **COPY_PAGES.blocks}
    return AotVariant(
        name="gather_pages" if is_gather else "scatter_pages",
        kernel=copy_pages_kernel,
        signature={"target_ptr": word, "source_ptr": word, "pages_ptr": "*i64", **integers}
        | dict.fromkeys(constexprs, "constexpr"),
        constexprs=constexprs,
        divisible=("target_ptr", "source_ptr", "pages_ptr", *integers),
        num_warps=COPY_PAGES.num_warps,
        num_stages=COPY_PAGES.num_stages,
    )
