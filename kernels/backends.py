"""Which module of ops a model runs on; looked up once, when the model is built.

Invariant: Triton is imported only where the GPU backend is asked for.
"""

from __future__ import annotations

from importlib import import_module
from typing import cast

from kernels import cpu, reference
from kernels.cpu import invariant
from kernels.interface import KernelBackend


def choose_backend(name: str, *, batch_invariant: bool = False) -> KernelBackend:
    """`cpu`, `gpu` or `reference`. Raises ValueError for a name that no backend has."""
    match name, batch_invariant:
        case "cpu", False:
            return cast(KernelBackend, cpu)
        case "cpu", True:
            return cast(KernelBackend, invariant)
        case "gpu", False:
            return cast(KernelBackend, import_module("kernels.gpu"))
        case "gpu", True:
            return cast(KernelBackend, import_module("kernels.gpu.invariant"))
        case "reference", _:
            return cast(KernelBackend, reference)
    raise ValueError(f"no kernel backend is called {name!r}")
