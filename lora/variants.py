"""The arithmetic of what adapters have beside A and B, each in PEFT's meaning, in float32.

Pure functions of tensors; knows nothing of files or sites. Where a form is relative to the base,
the base's own tensor is an argument.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from kernels.interface import ReplacedRows

# Rows of a weight that are in memory at once as float32 sums.
_CHUNK_ROWS = 4096


class VariantError(ValueError):
    """The adapter's numbers cannot be served exactly on this base."""


def dora_scale(weight: Tensor, a: Tensor, b: Tensor, magnitude: Tensor) -> Tensor:
    """m / ||W + BA||, row by row: what multiplies the output. Source: DoRA (Liu et al. 2024).

    weight [out, in], a [rank, in], b [out, rank] with the scale folded in, magnitude [out].

    Raises:
        VariantError: a row of W + BA is zero, so that its direction is undefined.
    """
    norms = torch.cat(
        [
            torch.linalg.vector_norm(weight[rows] + b[rows] @ a, dim=1)
            for rows in _chunks(weight.shape[0])
        ]
    )
    if bool((norms == 0).any()):
        raise VariantError("DoRA divides by the length of a row that is zero")
    return magnitude / norms


def dora_embedding_scale(weight: Tensor, a: Tensor, b: Tensor, magnitude: Tensor) -> Tensor:
    """The same for the embedding E [vocab, hidden], whose columns are what is scaled.

    a [rank, vocab], b [hidden, rank] with the scale folded in, magnitude [hidden].
    """
    squares = torch.zeros(weight.shape[1], dtype=torch.float64)
    for rows in _chunks(weight.shape[0]):
        squares += (weight[rows] + a[:, rows].t() @ b.t()).double().square().sum(dim=0)
    if bool((squares == 0).any()):
        raise VariantError("DoRA divides by the length of a column that is zero")
    return (magnitude.double() / squares.sqrt()).float()


def norm_scale(weight: Tensor, own: Tensor) -> Tensor:
    """What turns the base's normed rows into those of a norm with weight `own`: both [hidden].

    Raises:
        VariantError: the base's weight is zero where the adapter's is not.
    """
    if bool(((weight == 0) & (own != 0)).any()):
        raise VariantError("a norm's weight is zero in the base and not in the adapter")
    return torch.where(weight == 0, torch.ones_like(own), own / weight)


def replaced_rows(rows: Tensor, token_ids: Sequence[int]) -> ReplacedRows:
    """Rows in the order of the file, for `token_ids`, or for all ids where there are none."""
    if not token_ids:
        return ReplacedRows(rows)
    ids, order = torch.tensor(token_ids, dtype=torch.int64).sort()
    return ReplacedRows(rows[order].contiguous(), ids)


def _chunks(num_rows: int) -> list[slice]:
    return [slice(begin, begin + _CHUNK_ROWS) for begin in range(0, num_rows, _CHUNK_ROWS)]
