"""Draw tokens: truncation by threshold, then one inverse CDF per row in float64.

Truncating by a threshold value instead of by rank makes the result independent of how a sort
breaks ties. Invariant: equal logits and equal `uniform` give equal tokens.
"""

from __future__ import annotations

import torch
from torch import Tensor

# How many of the largest probabilities are looked at before a whole row is sorted for top-p.
NUCLEUS_CANDIDATES = 1024


def sample(
    logits: Tensor, temperature: Tensor, top_k: Tensor, top_p: Tensor, uniform: Tensor
) -> Tensor:
    token_ids = torch.argmax(logits, dim=-1)
    drawn = torch.nonzero(temperature > 0).flatten()
    if drawn.numel() == 0:
        return token_ids
    scores = logits[drawn].double()
    # Relative to the highest, so that no temperature is small enough to overflow.
    scores = (scores - scores.amax(dim=-1, keepdim=True)) / temperature[drawn, None]
    keep_top_k(scores, top_k[drawn])
    weights = torch.softmax(scores, dim=-1)
    keep_top_p(weights, top_p[drawn])
    cumulative = weights.cumsum(dim=-1)
    target = uniform[drawn, None] * cumulative[:, -1:]
    choice = torch.searchsorted(cumulative, target, right=True).flatten()
    # Rounding can put the target past the last weight; step back onto a token that has one.
    last = weights.shape[1] - 1 - weights.flip(-1).ne(0).int().argmax(dim=-1)
    token_ids[drawn] = torch.minimum(choice, last)
    return token_ids


def keep_top_k(scores: Tensor, top_k: Tensor) -> None:
    """Set every score below the row's k-th largest to -inf (k = 0: leave the row)."""
    for row in torch.nonzero(top_k > 0).flatten().tolist():
        k = min(int(top_k[row]), scores.shape[1])
        threshold = torch.topk(scores[row], k).values[-1]
        scores[row].masked_fill_(scores[row] < threshold, -torch.inf)


def keep_top_p(weights: Tensor, top_p: Tensor) -> None:
    """Set to 0 what is less likely than the last token needed to reach top_p (1: leave)."""
    for row in torch.nonzero(top_p < 1).flatten().tolist():
        threshold = _nucleus_threshold(weights[row], float(top_p[row]))
        weights[row].masked_fill_(weights[row] < threshold, 0.0)


def _nucleus_threshold(weights: Tensor, top_p: float) -> Tensor:
    num_candidates = min(NUCLEUS_CANDIDATES, weights.shape[0])
    largest = torch.topk(weights, num_candidates).values
    if float(largest.sum()) < top_p and num_candidates < weights.shape[0]:
        largest = torch.sort(weights, descending=True).values
    reached = largest.cumsum(dim=0) >= top_p
    index = int(reached.int().argmax()) if bool(reached.any()) else len(largest) - 1
    return largest[index]
