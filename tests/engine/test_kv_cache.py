"""The GPU form of the page storage: a page is one piece, and layers are views into it."""

from __future__ import annotations

import torch

from engine.kv_cache import CacheShape, LayeredKVCache, PagedKVCache

SHAPE = CacheShape(num_layers=3, num_kv_heads=2, block_size=4, head_dim=8, dtype=torch.float32)
PAGE_BYTES = 8192
NUM_PAGES = 5
ELEMENTS = 3 * 2 * 2 * 4 * 8


def paged() -> PagedKVCache:
    return PagedKVCache(SHAPE, NUM_PAGES, PAGE_BYTES, torch.device("cpu"))


def test_a_page_holds_its_blocks_layer_by_layer_k_then_v_head_by_head() -> None:
    cache = paged()
    cache.poison()
    for layer in range(3):
        for half, tensor in enumerate(cache.layer(layer)):
            for head in range(2):
                tensor[head, 1] = 100 * layer + 10 * half + head
    page = cache.pages[1].view(torch.float32)[:ELEMENTS].view(3, 2, 2, 4, 8)
    for layer in range(3):
        for half in range(2):
            for head in range(2):
                assert (page[layer, half, head] == 100 * layer + 10 * half + head).all()


def test_writing_one_page_leaves_every_other_one_alone() -> None:
    cache = paged()
    cache.poison()
    before = cache.pages.clone()
    for layer in range(3):
        for tensor in cache.layer(layer):
            tensor[:, 2] = 1.0
    changed = (cache.pages != before).any(dim=1).nonzero().flatten().tolist()
    assert changed == [2]
    tail = cache.pages[2].view(torch.float32)[ELEMENTS:]
    assert tail.isnan().all(), "what pads a page to 4 KiB is no layer's"


def test_poison_is_nan_in_every_form_and_dtype() -> None:
    for dtype in (torch.float32, torch.bfloat16):
        shape = CacheShape(3, 2, 4, 8, dtype)
        device = torch.device("cpu")
        for cache in (LayeredKVCache(shape, 5), PagedKVCache(shape, 5, PAGE_BYTES, device)):
            cache.poison()
            assert all(half.isnan().all() for i in range(3) for half in cache.layer(i))
