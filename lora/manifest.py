"""An adapter as the rest of Tenfold sees it: which modules, at which rank and scale, where.

Torch-free; used alike by the upload route and by the engine's loader.
"""

from __future__ import annotations

from dataclasses import dataclass

from lora.findings import Finding, ManifestError
from lora.limits import DEFAULT_LIMITS, ManifestLimits
from lora.safetensors_header import TensorSpan

__all__ = [
    "DEFAULT_LIMITS",
    "AdapterManifest",
    "Finding",
    "LoraModule",
    "ManifestError",
    "ManifestLimits",
    "TensorSpan",
]


@dataclass(frozen=True, slots=True)
class LoraModule:
    """One adapted linear module: `y += scale * B (A x)`. `a` is [rank, in], `b` [out, rank]."""

    layer: int
    module: str
    rank: int
    scale: float
    a: TensorSpan
    b: TensorSpan


@dataclass(frozen=True, slots=True)
class AdapterManifest:
    """A whole adapter; `modules` are sorted by (layer, canonical module order), none twice."""

    modules: tuple[LoraModule, ...]
    warnings: tuple[Finding, ...]
    base_name: str | None
    num_params: int
    max_rank: int
