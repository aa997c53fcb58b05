"""Pages are copied bit for bit, whole, and no other page is touched."""

from __future__ import annotations

import pytest
import torch

from kernels.gpu.pages import gather_pages, scatter_pages

PAGES = torch.tensor([6, 0, 3])
OTHERS = torch.tensor([1, 2, 4, 5])


def make_pool(dtype: torch.dtype, shape: tuple[int, ...]) -> torch.Tensor:
    """[7, *shape] of random bytes: among floats there are NaN, which must keep their bits too."""
    generator = torch.Generator().manual_seed(1)
    size = torch.Size(shape).numel() * dtype.itemsize
    pool = torch.randint(0, 256, (7, size), dtype=torch.uint8, generator=generator)
    return pool.view(dtype).view(7, *shape)


def bits(pool: torch.Tensor) -> torch.Tensor:
    return pool.flatten(1).view(torch.uint8)


@pytest.mark.parametrize("dtype", [torch.uint8, torch.bfloat16, torch.float32], ids=str)
# More words than a program copies; a page of 8-byte words; one that is none.
@pytest.mark.parametrize("shape", [(2, 2, 3, 1024), (4, 2), (7, 3)])
def test_pages_go_out_and_back_bit_for_bit(dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    pool = make_pool(dtype, shape)
    before = pool.clone()
    content = gather_pages(pool, PAGES)
    assert content.dtype == dtype and content.shape == (3, *shape)
    assert torch.equal(bits(content), bits(before)[PAGES])
    assert torch.equal(bits(pool), bits(before))

    scatter_pages(pool, PAGES.flip(0), content)
    assert torch.equal(bits(pool)[PAGES.flip(0)], bits(content))
    assert torch.equal(bits(pool)[OTHERS], bits(before)[OTHERS])
    assert not torch.equal(bits(pool)[PAGES], bits(before)[PAGES])


def test_pages_of_a_wider_pool_are_copied_by_their_stride() -> None:
    wide = make_pool(torch.float32, (2, 40))
    part = wide[:, 1]
    content = gather_pages(part, PAGES)
    assert torch.equal(bits(content), bits(part.contiguous())[PAGES])
    before = wide.clone()
    scatter_pages(part, OTHERS[:3], content)
    assert torch.equal(bits(wide[:, 0].contiguous()), bits(before[:, 0].contiguous()))
    assert torch.equal(bits(part.contiguous())[OTHERS[:3]], bits(content))


def test_no_pages_are_no_launch() -> None:
    pool = make_pool(torch.float32, (4, 2))
    assert gather_pages(pool, PAGES[:0]).shape == (0, 4, 2)
