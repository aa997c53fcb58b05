"""Whole pages out of a pool and back: what swapping copies. Knows nothing of what a page holds."""

from __future__ import annotations

import torch
from torch import Tensor


def gather_pages(pool: Tensor, pages: Tensor) -> Tensor:
    return torch.index_select(pool, 0, pages)


def scatter_pages(pool: Tensor, pages: Tensor, content: Tensor) -> None:
    pool.index_copy_(0, pages, content)
