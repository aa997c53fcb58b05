"""An adapter ready to run on a CPU, and how it is read from its files.

Knows nothing of PEFT's file names (the manifest maps them) nor of batches. Invariant: every
tensor the manifest lists is read, and nothing else of the adapter is.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from kernels.interface import LoraSite, SiteKey
from lora.base_spec import BaseSpec
from lora.base_tensors import BaseTensors
from lora.layout import num_pages
from lora.manifest import AdapterManifest
from lora.site_builder import SiteBuilder, site_bytes
from lora.sites import SAMPLING_SITES
from lora.span_reader import SpanReader


@dataclass(frozen=True, slots=True, eq=False, weakref_slot=True)
class LoraWeights:
    """Canonical tensors: float32, the scale folded into B, grouped by site. Sites that the
    adapter does not touch are absent.

    Its tensors stay where they are: pages of the pool are its charge, and nothing is copied.
    """

    sites: Mapping[SiteKey, LoraSite]
    num_bytes: int
    has_row_forms: bool = field(init=False)
    """Whether it has anything but LoRA on the linear sites of layers."""
    is_installed = True
    is_copied = False

    def __post_init__(self) -> None:
        has_row_forms = any(map(_has_row_forms, self.sites.items()))
        object.__setattr__(self, "has_row_forms", has_row_forms)

    @property
    def for_kernels(self) -> LoraWeights:
        return self

    @property
    def is_at_head(self) -> bool:
        """Whether it changes what becomes of the rows that sample."""
        return not SAMPLING_SITES.isdisjoint(self.sites)

    def num_pages(self, page_bytes: int) -> int:
        return num_pages(self.num_bytes, page_bytes)

    def install(self, pages: Sequence[int]) -> LoraWeights:
        return self


def load_weights(
    manifest: AdapterManifest, weights: Path, base: BaseSpec, tensors: BaseTensors
) -> LoraWeights:
    """Read the tensors that `manifest` names from the safetensors file `weights`.

    `tensors` are the base's own, to which some forms are relative.

    Raises:
        OSError: a file cannot be read, or is shorter than its manifest says.
        VariantError: its numbers cannot be served exactly on this base.
    """
    with weights.open("rb", buffering=0) as file:
        builder = SiteBuilder(SpanReader(file.fileno()), base, tensors)
        for module in manifest.modules:
            builder.add_module(module)
        for override in manifest.overrides:
            builder.add_override(override)
        sites = builder.build()
    return LoraWeights(sites, num_bytes=sum(map(site_bytes, sites.values())))


def _has_row_forms(item: tuple[SiteKey, LoraSite]) -> bool:
    (layer, _), site = item
    return layer < 0 or not (site.scale is None and site.bias is None and site.replaced is None)
