"""Bugs of rotary embedding and of the write into pages."""

from __future__ import annotations

from tests.kernels_gpu.seeded_bugs import SeededBug

KERNEL = "kernels/gpu/rope.py"

BUGS = [
    SeededBug(
        "the second half turns the other way",
        KERNEL,
        "second * cos_second + first * sin_second",
        "second * cos_second - first * sin_second",
    ),
    SeededBug(
        "rows past the last token overwrite a slot",
        KERNEL,
        "slots = tl.load(slots_ptr + tokens, mask=token_mask, other=-1)",
        "slots = tl.load(slots_ptr + tokens, mask=token_mask, other=0)",
    ),
]
