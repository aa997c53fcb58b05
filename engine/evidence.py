"""What a runner tells of the logits of requests that want evidence.

Knows nothing of adapters. Invariant: which logits are told depends on the vocabulary's size alone,
so that those of two requests can be compared.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from engine.sequence import Sequence as EngineSequence

NUM_LOGITS = 64


def take_evidence(logits: Tensor, sampling: Sequence[EngineSequence]) -> None:
    """logits [N, V], one row for each of `sampling`: leave with each that wants it what it is told.

    Waits for the device where there is one that wants it, and does nothing where there is none.
    """
    rows = [row for row, sequence in enumerate(sampling) if sequence.request.wants_evidence]
    if not rows:
        return
    ids = torch.arange(NUM_LOGITS, device=logits.device) * (logits.shape[1] - 1) // (NUM_LOGITS - 1)
    for row, told in zip(rows, logits[rows][:, ids].tolist(), strict=True):
        sampling[row].told_logits = tuple(told)
