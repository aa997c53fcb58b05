"""Bugs of the shim that every bfloat16 result rests on."""

from __future__ import annotations

from tests.kernels_gpu.seeded_bugs import SeededBug

SHIM = "tests/kernels_gpu/bfloat16_shim.py"

BUGS = [
    SeededBug(
        "ties round up, not to even",
        SHIM,
        "np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))",
        "np.uint32(0x8000)",
    ),
    SeededBug(
        "a NaN may round to infinity",
        SHIM,
        "nan = np.isnan(values) & ((bits & _LOW_HALF) != 0)",
        "nan = np.zeros_like(values, dtype=bool)",
    ),
]
