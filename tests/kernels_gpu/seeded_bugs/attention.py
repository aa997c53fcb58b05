"""Bugs that attention kernels really have: masks, borders, and merges."""

from __future__ import annotations

from tests.kernels_gpu.seeded_bugs import SeededBug

KERNEL = "kernels/gpu/attention_kernel.py"
MERGE = "kernels/gpu/attention_merge.py"
PLAN = "kernels/gpu/attention_plan.py"

BUGS = [
    SeededBug(
        "values past the context are loaded: 0 times a recycled page's NaN is NaN",
        KERNEL,
        "values = tl.load(value_ptr + offsets, mask=load_mask, other=0.0)",
        "values = tl.load(value_ptr + offsets, mask=dim_mask[None, :], other=0.0)",
    ),
    SeededBug(
        "a token sees the next one",
        KERNEL,
        "(kv[None, :] <= position[:, None])",
        "(kv[None, :] <= position[:, None] + 1)",
    ),
    SeededBug(
        "the window is one position too wide",
        KERNEL,
        "(kv[None, :] > position[:, None] - WINDOW)",
        "(kv[None, :] >= position[:, None] - WINDOW)",
    ),
    SeededBug(
        "what was summed before a higher score is not rescaled",
        KERNEL,
        "acc = acc * rescale[:, None]",
        "acc = acc * 1.0",
    ),
    SeededBug(
        "every page of a range is taken for its first",
        KERNEL,
        "page = tl.load(table_ptr + start // BLOCK_SIZE)",
        "page = tl.load(table_ptr + kv_begin // BLOCK_SIZE)",
    ),
    SeededBug(
        "parts are merged as if they weighed the same",
        MERGE,
        "weights = tl.exp2(lse - new_top)",
        "weights = tl.where(part_mask, 1.0, 0.0)",
    ),
    SeededBug(
        "parts beyond the first block are added without rescaling",
        MERGE,
        "acc = acc * rescale + tl.sum(",
        "acc = acc + tl.sum(",
    ),
    SeededBug(
        "a part ends one position early",
        PLAN,
        "return begin, np.minimum(end, kv_end)",
        "return begin, np.minimum(end, kv_end - 1)",
    ),
]
