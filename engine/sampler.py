"""Which token comes next: gathers sampling parameters and draws.

A draw is a function of (seed, position) alone: Philox with the seed as key and the position of
the new token as counter (Salmon et al. 2011), so neither batch nor restart changes it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from engine.sequence import Sequence as EngineSequence
from kernels.interface import KernelBackend

UINT64_MASK = (1 << 64) - 1


def draw_uniform(seed: int, position: int) -> float:
    """The number in [0, 1) that decides the token at `position`."""
    philox = np.random.Philox(key=seed & UINT64_MASK, counter=position)
    return float(np.random.Generator(philox).random())


def sampling_arrays(
    sequences: Sequence[EngineSequence], *, always: bool = False
) -> list[np.ndarray[Any, Any]]:
    """What `sample` takes after the logits, a row per sequence; nothing where all are greedy.

    always: also where all are greedy.
    """
    params = [sequence.request.sampling for sequence in sequences]
    if not always and all(each.temperature == 0 for each in params):
        return []
    uniform = [
        draw_uniform(each.seed, sequence.num_tokens) if each.temperature > 0 else 0.0
        for each, sequence in zip(params, sequences, strict=True)
    ]
    return [
        np.array([each.temperature for each in params], dtype=np.float64),
        np.array([each.top_k for each in params], dtype=np.int64),
        np.array([each.top_p for each in params], dtype=np.float64),
        np.zeros(len(params), dtype=np.float64),  # min_p, which requests do not have
        np.array(uniform, dtype=np.float64),
    ]


def sample_tokens(
    logits: Tensor, sequences: Sequence[EngineSequence], ops: KernelBackend
) -> list[int]:
    """logits [N, V], one row per sequence -> N token ids."""
    arrays = sampling_arrays(sequences)
    if not arrays:
        return list(torch.argmax(logits, dim=-1).tolist())
    return list(ops.sample(logits, *map(torch.from_numpy, arrays)).tolist())
