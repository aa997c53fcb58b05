"""Bugs of the forms beside LoRA."""

from __future__ import annotations

from tests.kernels_gpu.seeded_bugs import SeededBug

KERNELS = "kernels/gpu/adapter_rows_kernels.py"

BUGS = [
    SeededBug(
        "the scale is applied to the base's bias too",
        KERNELS,
        "y = (y - bias[None, :]) * vector[None, :] + bias[None, :]",
        "y = y * vector[None, :]",
    ),
    SeededBug(
        "a token without a row of its own gets the next id's",
        KERNELS,
        "is_replaced = found == token_id",
        "is_replaced = found >= token_id",
    ),
    SeededBug(
        "a row of a run is counted from the run before",
        "kernels/gpu/adapter_tiles.py",
        "within = (row % rows_per_run)",
        "within = (row % (rows_per_run + 1))",
    ),
]
