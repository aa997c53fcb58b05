"""Linear layers over weights that oneDNN has packed once.

The packing and its product are PyTorch's own ops for frozen graphs (`torch.ops.mkldnn`). Where a
CPU or dtype has none of it, the weight stays as it is and `F.linear` reads it.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

# The batch size oneDNN lays the weight out for. Decode batches are near it, and at 64 rows or
# more every layout is within 10 % of the best.
PACKING_ROWS = 16


@dataclass(frozen=True, slots=True)
class PackedLinear:
    """A weight [out_features, in_features]; `data` is opaque when `is_packed`."""

    data: Tensor
    is_packed: bool


def pack_linear(weight: Tensor) -> PackedLinear:
    packed = _try_pack(weight.contiguous())
    if packed is None:
        return PackedLinear(weight.contiguous(), is_packed=False)
    return PackedLinear(packed, is_packed=True)


def _try_pack(weight: Tensor) -> Tensor | None:
    if not torch._C._has_mkldnn:
        return None
    try:
        packed: Tensor = torch.ops.mkldnn._reorder_linear_weight(weight, PACKING_ROWS)
        probe = torch.zeros(PACKING_ROWS, weight.shape[1], dtype=weight.dtype)
        torch.ops.mkldnn._linear_pointwise(probe, packed, None, "none", [], "")
    except RuntimeError:  # no oneDNN kernel for this dtype on this CPU
        return None
    return packed


def linear(x: Tensor, weight: PackedLinear, bias: Tensor | None) -> Tensor:
    if not weight.is_packed:
        return functional.linear(x, weight.data, bias)
    product: Tensor = torch.ops.mkldnn._linear_pointwise(x, weight.data, bias, "none", [], "")
    return product
