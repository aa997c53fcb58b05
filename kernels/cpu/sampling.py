"""From logits to tokens: penalties, truncation by threshold, one inverse CDF per row in float64.

Truncating by a threshold value instead of by rank makes the result independent of how a sort
breaks ties. Invariant: equal logits and equal `uniform` give equal tokens.
"""

from __future__ import annotations

import torch
from torch import Tensor

# How many of the largest probabilities are looked at before a whole row is sorted for top-p.
NUCLEUS_CANDIDATES = 1024


def apply_penalties(
    logits: Tensor,
    output_counts: Tensor,
    seen: Tensor,
    repetition: Tensor,
    frequency: Tensor,
    presence: Tensor,
) -> None:
    repetition = repetition[:, None]
    repeated = torch.where(logits > 0, logits / repetition, logits * repetition)
    torch.where(seen, repeated, logits, out=logits)
    penalty = frequency[:, None] * output_counts + presence[:, None] * (output_counts > 0)
    logits.sub_(penalty)


def sample(
    logits: Tensor,
    temperature: Tensor,
    top_k: Tensor,
    top_p: Tensor,
    min_p: Tensor,
    uniform: Tensor,
) -> Tensor:
    token_ids = torch.argmax(logits, dim=-1)
    drawn = torch.nonzero(temperature > 0).flatten()
    if drawn.numel() == 0:
        return token_ids
    scores = logits[drawn].double()
    # Relative to the highest, so that no temperature is small enough to overflow.
    scores = (scores - scores.amax(dim=-1, keepdim=True)) / temperature[drawn, None]
    keep_min_p(scores, min_p[drawn])
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


def keep_min_p(scores: Tensor, min_p: Tensor) -> None:
    """Set to -inf what is less likely than min_p times the row's likeliest, whose score is 0."""
    for row in torch.nonzero(min_p > 0).flatten().tolist():
        scores[row].masked_fill_(scores[row].exp() < min_p[row], -torch.inf)


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


def log_probs(logits: Tensor, token_ids: Tensor, num_top: int) -> tuple[Tensor, Tensor, Tensor]:
    normal = torch.log_softmax(logits.float(), dim=-1)
    chosen = normal.gather(1, token_ids[:, None]).squeeze(1)
    top_ids = torch.empty(logits.shape[0], num_top, dtype=torch.int64)
    for row in range(logits.shape[0] if num_top else 0):
        top_ids[row] = _likeliest(logits[row], num_top)
    return chosen, top_ids, normal.gather(1, top_ids)


def _likeliest(logits: Tensor, num_top: int) -> Tensor:
    """`topk` orders ties at will; a stable sort of what reaches its last value does not."""
    last = torch.topk(logits, num_top).values[-1]
    token_ids = torch.nonzero(logits >= last).flatten()
    order = torch.sort(logits[token_ids], descending=True, stable=True).indices
    return token_ids[order[:num_top]]
