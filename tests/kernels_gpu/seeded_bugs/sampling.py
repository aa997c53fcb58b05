"""Bugs of the search for a threshold and of the draw."""

from __future__ import annotations

from tests.kernels_gpu.seeded_bugs import SeededBug

SAMPLING = "kernels/gpu/sampling.py"
VOCABULARY = "kernels/gpu/vocabulary.py"

BUGS = [
    SeededBug(
        "top_p is a share of all tokens, not of those that top_k left",
        SAMPLING,
        "top_p * total,",
        "top_p,",
    ),
    SeededBug(
        "negative logits keep the order of their bits",
        VOCABULARY,
        "tl.where(bits < 0, bits ^ 0x7FFFFFFF, bits)",
        "bits",
    ),
    SeededBug(
        "the blocks before the drawn one are forgotten",
        SAMPLING,
        "is_passed = (before + tl.cumsum",
        "is_passed = (tl.cumsum",
    ),
]
