"""Which token comes next: gathers sampling parameters and draws.

A draw is a function of (seed, position) alone: Philox with the seed as key and the position of
the new token as counter (Salmon et al. 2011), so neither batch nor restart changes it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import structlog
import torch
from torch import Tensor

from engine.row_failures import INTERNAL_ERROR, NONFINITE_LOGITS, Outcome
from engine.sequence import Sequence as EngineSequence
from kernels.interface import KernelBackend

log = structlog.get_logger()

UINT64_MASK = (1 << 64) - 1


def draw_uniform(seed: int, position: int) -> float:
    """The number in [0, 1) that decides the token at `position`."""
    philox = np.random.Philox(key=seed & UINT64_MASK, counter=position)
    return float(np.random.Generator(philox).random())


class Draw(NamedTuple):
    """One row's part of what `sample` takes after the logits, in that order."""

    temperature: float
    top_k: int
    top_p: float
    min_p: float
    uniform: float


GREEDY = Draw(0.0, 0, 1.0, 0.0, 0.0)
_DTYPES: tuple[type[np.generic], ...] = (
    np.float64,
    np.int64,
    np.float64,
    np.float64,
    np.float64,
)


def draw_of(sequence: EngineSequence) -> Draw:
    """How the next token of `sequence` is drawn.

    Raises where a parameter is none that a kernel can take: so no array of many rows can fail.
    """
    if sequence.is_greedy:
        return GREEDY
    params = sequence.request.sampling
    temperature = float(params.temperature)
    uniform = draw_uniform(params.seed, sequence.num_tokens) if temperature > 0 else 0.0
    # Requests have no min_p.
    return Draw(temperature, int(np.int64(params.top_k)), float(params.top_p), 0.0, uniform)


def sampling_arrays(draws: Sequence[Draw], *, always: bool = False) -> list[np.ndarray[Any, Any]]:
    """What `sample` takes after the logits, a row per draw; nothing where all are greedy.

    always: also where all are greedy.
    """
    if not always and all(draw.temperature == 0 for draw in draws):
        return []
    return [
        np.array([draw[index] for draw in draws], dtype=dtype)
        for index, dtype in enumerate(_DTYPES)
    ]


def sample_tokens(logits: Tensor, draws: Sequence[Draw], ops: KernelBackend) -> list[int]:
    """logits [N, V], one row per draw -> N token ids."""
    arrays = sampling_arrays(draws)
    if not arrays:
        return list(torch.argmax(logits, dim=-1).tolist())
    return list(ops.sample(logits, *map(torch.from_numpy, arrays)).tolist())


def sample_rows(
    logits: Tensor, sampling: Sequence[EngineSequence], draws: Sequence[Draw], ops: KernelBackend
) -> list[Outcome]:
    """logits [N, V] -> N outcomes. A row that cannot be sampled costs its neighbours nothing."""
    outcomes: list[Outcome]
    try:
        outcomes = [*sample_tokens(logits, draws, ops)]
    except Exception:  # a row of it is at fault: each alone, over the same logits
        outcomes = [
            _sample_alone(logits[row : row + 1], sampling[row], draws[row], ops)
            for row in range(len(sampling))
        ]
    for row, is_finite in enumerate(are_finite(logits).tolist()):
        if not is_finite:
            outcomes[row] = NONFINITE_LOGITS
    return outcomes


def are_finite(logits: Tensor) -> Tensor:
    """[N, V] -> [N] bool: whether a row has neither a NaN nor an infinity.

    One sum a row tells; a row of finite numbers whose sum overflows counts as none.
    """
    return logits.sum(dim=-1) * 0 == 0


def _sample_alone(
    logits: Tensor, sequence: EngineSequence, draw: Draw, ops: KernelBackend
) -> Outcome:
    try:
        [token_id] = sample_tokens(logits, [draw], ops)
    except Exception:  # the edge of a row
        log.exception("row_failed", at="sample", request_id=sequence.request_id)
        return INTERNAL_ERROR
    return token_id
