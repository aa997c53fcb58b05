"""Segments for the kernels' tests: adapters that touch one site."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from kernels.interface import LoraSegment, LoraSite, SiteKey

SITE: SiteKey = (0, "site")


@dataclass(frozen=True, slots=True, eq=False, weakref_slot=True)
class Sites:
    """`kernels.interface.LoraSites` as plain data."""

    sites: Mapping[SiteKey, LoraSite]


def segment(start: int, end: int, site: LoraSite) -> LoraSegment:
    """Rows `[start, end)` of an adapter that has `site` at `SITE`, and nothing else."""
    return LoraSegment(start, end, Sites({SITE: site}))
