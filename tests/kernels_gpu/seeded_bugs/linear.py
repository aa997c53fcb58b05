"""Bugs of the linear of fixed tiles."""

from __future__ import annotations

from tests.kernels_gpu.seeded_bugs import SeededBug

BUGS = [
    SeededBug(
        "the last block of k reads on past the row",
        "kernels/gpu/linear.py",
        "is_inner = start + inner < num_in",
        "is_inner = inner < num_in",
    ),
]
