"""`LoraLinear`: any linear layer, plus what the adapters of the batch's rows add to it.

Models never mention LoRA: the engine wraps their linears once, when the model is built.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from torch import Tensor

from kernels.interface import KernelBackend


class Batch(Protocol):
    """What LoRA needs to know of a step's batch."""

    @property
    def lora(self) -> Any | None:
        """The backend's plan; None where every row is the base's, so that it pays nothing."""


Linear = Callable[[Tensor, Any], Tensor]
"""x [T, K], the batch -> [T, N]."""


class LoraLinear:
    """`base(x)` plus, for each adapter's rows, `scale * (x @ A.T) @ B.T`.

    Source: LoRA (Hu et al. 2021); segments as in Punica's SGMV (Chen et al. 2023).
    """

    def __init__(self, base: Linear, layer: int, site: str, ops: KernelBackend) -> None:
        self._base = base
        self._key = (layer, site)
        self._ops = ops

    def __call__(self, x: Tensor, batch: Batch) -> Tensor:
        y = self._base(x, batch)
        if batch.lora is not None:
            self._ops.add_lora(y, x, batch.lora, self._key)
        return y
