"""Bugs of the norms, the activation and the penalties."""

from __future__ import annotations

from tests.kernels_gpu.seeded_bugs import SeededBug

POINTWISE = "kernels/gpu/pointwise.py"

BUGS = [
    SeededBug(
        "the mean is taken over the block, not over the row",
        POINTWISE,
        "axis=0) / num_columns + eps",
        "axis=0) / BLOCK_COLUMNS + eps",
    ),
    SeededBug(
        "the sum is normed, but the residual keeps its old value",
        POINTWISE,
        "        tl.store(residual_ptrs, x, mask=inside)\n",
        "",
    ),
    SeededBug(
        "a negative logit of a seen token is divided too, which raises it",
        POINTWISE,
        "tl.where(logits > 0.0, logits / repetition, logits * repetition)",
        "logits / repetition",
    ),
]
