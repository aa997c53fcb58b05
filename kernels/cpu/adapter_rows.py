"""What adapters need beside LoRA, on a CPU: output scales, biases, replaced rows, the embedding.

Knows nothing of models. Invariant: only rows of a segment whose adapter has the form are written.
The two forms with a product take it as an argument, so that `kernels.cpu.invariant` can bring one
of fixed shapes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import torch
from torch import Tensor

from kernels.interface import LoraSegment, LoraSite, ReplacedRows, SiteKey

Multiply = Callable[[Tensor, Tensor], Tensor]
"""x [rows, K], w [N, K], both float32 -> x @ w.T."""


def scale_output(y: Tensor, bias: Tensor | None, plan: Sequence[LoraSegment], key: SiteKey) -> None:
    for segment, site in _sites(plan, key):
        if site.scale is None:
            continue
        rows = y[segment.start : segment.end]
        wide = rows.float()
        if bias is None:
            rows.copy_(wide * site.scale)
        else:
            rows.copy_((wide - bias.float()) * site.scale + bias.float())


def add_row_bias(y: Tensor, plan: Sequence[LoraSegment], key: SiteKey) -> None:
    for segment, site in _sites(plan, key):
        if site.bias is not None:
            rows = y[segment.start : segment.end]
            rows.copy_(rows.float() + site.bias)


def replace_embedding_rows(
    hidden: Tensor, input_ids: Tensor, plan: Sequence[LoraSegment], key: SiteKey
) -> None:
    for segment, site in _sites(plan, key):
        if site.replaced is None:
            continue
        index, is_replaced = _find(input_ids[segment.start : segment.end], site.replaced)
        tokens = segment.start + is_replaced.nonzero().squeeze(1)
        hidden[tokens] = site.replaced.rows[index[is_replaced]].to(hidden.dtype)


def add_embedding_lora(
    hidden: Tensor, input_ids: Tensor, plan: Sequence[LoraSegment], key: SiteKey
) -> None:
    add_embedding_by(_multiply, hidden, input_ids, plan, key)


def add_embedding_by(
    multiply: Multiply,
    hidden: Tensor,
    input_ids: Tensor,
    plan: Sequence[LoraSegment],
    key: SiteKey,
) -> None:
    """`add_embedding_lora` by a product of the caller's."""
    for segment, site in _sites(plan, key):
        for part in site.parts:
            columns = site.a[:, input_ids[segment.start : segment.end]]
            rows = hidden[segment.start : segment.end]
            rows.copy_(rows.float() + multiply(columns.t().contiguous(), part.b))


def override_linear(y: Tensor, x: Tensor, plan: Sequence[LoraSegment], key: SiteKey) -> None:
    override_by(_multiply, y, x, plan, key)


def override_by(
    multiply: Multiply, y: Tensor, x: Tensor, plan: Sequence[LoraSegment], key: SiteKey
) -> None:
    """`override_linear` by a product of the caller's."""
    for segment, site in _sites(plan, key):
        if (replaced := site.replaced) is None:
            continue
        product = multiply(x[segment.start : segment.end].float(), replaced.rows)
        if replaced.bias is not None:
            product += replaced.bias
        rows = y[segment.start : segment.end]
        if replaced.ids is None:
            rows[:, : product.shape[1]] = product.to(y.dtype)
        else:
            rows[:, replaced.ids] = product.to(y.dtype)


def _sites(plan: Sequence[LoraSegment], key: SiteKey) -> Iterator[tuple[LoraSegment, LoraSite]]:
    for segment in plan:
        site = segment.weights.sites.get(key)
        if site is not None:
            yield segment, site


def _find(token_ids: Tensor, replaced: ReplacedRows) -> tuple[Tensor, Tensor]:
    """Each token's place among the replaced rows, and whether it has one."""
    count = replaced.rows.shape[0]
    if replaced.ids is None:
        return token_ids, token_ids < count
    index = torch.searchsorted(replaced.ids, token_ids).clamp_(max=count - 1)
    return index, replaced.ids[index] == token_ids


def _multiply(x: Tensor, w: Tensor) -> Tensor:
    return torch.mm(x, w.t())
