"""Canonical tensors of an adapter: float32, the scale folded into B, grouped by site.

Knows nothing of PEFT's file names (the manifest maps them) nor of batches. Invariant: every
tensor the manifest lists is read exactly once, and nothing else is.
"""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from kernels.interface import LoraPart, LoraSite, SiteKey
from lora.base_spec import BaseSpec
from lora.layout import num_pages
from lora.manifest import AdapterManifest, LoraModule, TensorSpan
from lora.sites import SITES

DTYPES = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}


@dataclass(frozen=True, slots=True, eq=False)
class LoraWeights:
    """An adapter ready to run on a CPU. Sites that it does not touch are absent.

    Its tensors stay where they are: pages of the pool are its charge, and nothing is copied.
    """

    sites: Mapping[SiteKey, LoraSite]
    num_bytes: int
    is_installed = True
    is_copied = False

    @property
    def for_kernels(self) -> LoraWeights:
        return self

    def num_pages(self, page_bytes: int) -> int:
        return num_pages(self.num_bytes, page_bytes)

    def install(self, pages: Sequence[int]) -> LoraWeights:
        return self


def load_weights(manifest: AdapterManifest, weights: Path, base: BaseSpec) -> LoraWeights:
    """Read the tensors that `manifest` names from the safetensors file `weights`.

    Raises:
        OSError: the file cannot be read, or is shorter than its manifest says.
    """
    by_layer: dict[int, dict[str, LoraModule]] = defaultdict(dict)
    for module in manifest.modules:
        by_layer[module.layer][module.module] = module
    sites: dict[SiteKey, LoraSite] = {}
    with weights.open("rb", buffering=0) as file:
        reader = _SpanReader(file.fileno())
        for layer, modules in by_layer.items():
            for site in SITES:
                present = [modules[name] for name in site.modules if name in modules]
                if present:
                    sites[layer, site.name] = _build_site(reader, present, site.outputs(base))
    return LoraWeights(sites, num_bytes=sum(_site_bytes(site) for site in sites.values()))


class _SpanReader:
    """Reads tensors by absolute offset; never trusts that the file still has its length."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    def read(self, span: TensorSpan) -> Tensor:
        data = bytearray(os.pread(self._descriptor, span.end - span.begin, span.begin))
        if len(data) != span.end - span.begin:
            raise OSError(f"tensor {span.name} is cut short")
        return torch.frombuffer(data, dtype=DTYPES[span.dtype]).view(span.shape).float()


def _build_site(
    reader: _SpanReader, modules: Sequence[LoraModule], outputs: Mapping[str, tuple[int, int]]
) -> LoraSite:
    rows, parts, rank_begin = [], [], 0
    for module in modules:
        rows.append(reader.read(module.a))
        # Rank by rank: what one rank adds is read in one piece.
        b = (reader.read(module.b) * module.scale).t().contiguous().t()
        rank_end = rank_begin + module.rank
        parts.append(LoraPart(b, (rank_begin, rank_end), outputs[module.module]))
        rank_begin = rank_end
    return LoraSite(torch.cat(rows), tuple(parts))


def _site_bytes(site: LoraSite) -> int:
    return site.a.nbytes + sum(part.b.nbytes for part in site.parts)
