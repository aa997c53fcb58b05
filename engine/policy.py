"""Who goes when pages run out, and whether its pages move to the host or are computed again.

Pure: knows nothing of pools or devices. Invariant: while no token is delivered the same sequence is
spared by every choice, so that preemption cannot go round in circles.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Literal

from engine.config import Preemption
from engine.sequence import Sequence
from engine.speeds import Speeds

Way = Literal["swap", "recompute"]


def choose_victim(running: Iterable[Sequence], service: Callable[[str], float]) -> Sequence:
    """The newest sequence of the tenant that has had the most.

    service: of a tenant, over its weight (`engine/fair_order.py`).
    """
    return max(running, key=lambda each: (service(each.request.tenant_id), each.arrival))


def choose_way(preemption: Preemption, num_tokens: int, num_bytes: int, speeds: Speeds) -> Way:
    """How `num_tokens` that were computed, and lie in `num_bytes` of pages, come back.

    The pages travel twice; the tokens take their share of later steps.
    """
    if preemption != "auto":
        return preemption
    swap_s = 2 * num_bytes / speeds.link_bytes_per_s
    return "swap" if swap_s <= num_tokens / speeds.prefill_tokens_per_s else "recompute"
