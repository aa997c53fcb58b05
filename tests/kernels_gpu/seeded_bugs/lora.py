"""Bugs of shrink and expand."""

from __future__ import annotations

from tests.kernels_gpu.seeded_bugs import SeededBug

KERNELS = "kernels/gpu/lora_kernels.py"

BUGS = [
    SeededBug(
        "B is read one vector early: a stale row of the page",
        KERNELS,
        "tl.load(table + b_list + ranks * num_pieces,",
        "tl.load(table + b_list + tl.maximum(ranks - 1, 0) * num_pieces,",
    ),
    SeededBug(
        "the last split is not summed",
        KERNELS,
        "tl.static_range(NUM_SPLITS):",
        "tl.static_range(NUM_SPLITS - 1):",
    ),
    SeededBug(
        "ranks of other adapters' partials reach the sum",
        KERNELS,
        "is_partial = is_row[:, None] & is_rank[None, :]",
        "is_partial = is_row[:, None] & (ranks >= 0)[None, :]",
    ),
    SeededBug(
        "the third part begins where the second does",
        KERNELS,
        "out_begin = width0 + width1",
        "out_begin = width0",
    ),
    SeededBug(
        "the end of the input is not masked",
        KERNELS,
        "is_column = columns < num_in",
        "is_column = columns >= 0",
    ),
]
