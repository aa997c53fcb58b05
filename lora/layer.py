"""What the adapters of a batch's rows do to a model's layers: wrappers around the base's own.

Models never mention LoRA: the engine wraps their linears, norms and embedding once, when the model
is built. Invariant: where no adapter of the batch has a form, nothing is done for that form, and
rows of the base keep their bits.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from torch import Tensor

from kernels.interface import KernelBackend, SiteKey
from lora.sites import EMBED_TOKENS, LM_HEAD


class Batch(Protocol):
    """What adapters need to know of a step's batch: plans of the backend's, None for nothing.

    lora: over all rows, None where every row is the base's, so that it pays nothing. row_forms:
    the same where some adapter has more than LoRA on the linears of layers. head_forms: over the
    rows that sample, where some adapter changes what becomes of those.
    """

    @property
    def lora(self) -> Any | None: ...
    @property
    def row_forms(self) -> Any | None: ...
    @property
    def head_forms(self) -> Any | None: ...


class Linear(Protocol):
    """x [T, K], the batch -> [T, N]. `bias` [N] is a part of it."""

    @property
    def bias(self) -> Tensor | None: ...
    def __call__(self, x: Tensor, batch: Any) -> Tensor: ...


class Norm(Protocol):
    """A root mean square norm of rows [T, H]."""

    def __call__(self, x: Tensor, batch: Any) -> Tensor: ...
    def add(self, x: Tensor, residual: Tensor, batch: Any) -> Tensor:
        """residual += x in place; the norm of that."""


Embedding = Callable[[Tensor, Any], Tensor]
"""ids [T] int64, the batch -> [T, H], which the caller may change."""


class LoraLinear:
    """`base(x)` plus, for each adapter's rows, `scale * (x @ A.T) @ B.T`, and what it has beside.

    Source: LoRA (Hu et al. 2021); segments as in Punica's SGMV (Chen et al. 2023).
    """

    def __init__(self, base: Linear, layer: int, site: str, ops: KernelBackend) -> None:
        self._base = base
        self._key = (layer, site)
        self._ops = ops

    @property
    def bias(self) -> Tensor | None:
        return self._base.bias

    def __call__(self, x: Tensor, batch: Batch) -> Tensor:
        y = self._base(x, batch)
        if batch.lora is not None:
            self._ops.add_lora(y, x, batch.lora, self._key)
            if batch.row_forms is not None:
                self._ops.scale_output(y, self._base.bias, batch.row_forms, self._key)
                self._ops.add_row_bias(y, batch.row_forms, self._key)
        return y


class LoraHead:
    """The language model head over the rows that sample, with LoRA or rows of the adapter's own."""

    def __init__(self, base: Linear, ops: KernelBackend) -> None:
        self._base = base
        self._ops = ops

    @property
    def bias(self) -> Tensor | None:
        return self._base.bias

    def __call__(self, x: Tensor, batch: Batch) -> Tensor:
        y = self._base(x, batch)
        if (plan := batch.head_forms) is not None:
            self._ops.add_lora(y, x, plan, LM_HEAD)
            self._ops.override_linear(y, x, plan, LM_HEAD)
            self._ops.scale_output(y, self._base.bias, plan, LM_HEAD)
            self._ops.add_row_bias(y, plan, LM_HEAD)
        return y


class LoraNorm:
    """A norm whose weight an adapter may replace: by the quotient of the two weights.

    `is_final`: it sees only the rows that sample.
    """

    def __init__(self, base: Norm, key: SiteKey, ops: KernelBackend, *, is_final: bool) -> None:
        self._base = base
        self._key = key
        self._ops = ops
        self._is_final = is_final

    def __call__(self, x: Tensor, batch: Batch) -> Tensor:
        return self._own(self._base(x, batch), batch)

    def add(self, x: Tensor, residual: Tensor, batch: Batch) -> Tensor:
        return self._own(self._base.add(x, residual, batch), batch)

    def _own(self, normed: Tensor, batch: Batch) -> Tensor:
        plan = batch.head_forms if self._is_final else batch.row_forms
        if plan is not None:
            self._ops.scale_output(normed, None, plan, self._key)
        return normed


class LoraEmbedding:
    """The input embedding, with LoRA or rows of the adapter's own."""

    def __init__(self, base: Embedding, ops: KernelBackend) -> None:
        self._base = base
        self._ops = ops

    def __call__(self, input_ids: Tensor, batch: Batch) -> Tensor:
        hidden = self._base(input_ids, batch)
        if (plan := batch.row_forms) is not None:
            self._ops.replace_embedding_rows(hidden, input_ids, plan, EMBED_TOKENS)
            self._ops.add_embedding_lora(hidden, input_ids, plan, EMBED_TOKENS)
            self._ops.scale_output(hidden, None, plan, EMBED_TOKENS)
        return hidden
