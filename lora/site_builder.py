"""An adapter's tensors, module by module, put together as the sites that kernels read.

Knows nothing of files' names. Invariant: at a site that holds several modules, a module without a
form has that form's neutral element: scale 1, bias 0.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field

import torch
from torch import Tensor

from kernels.interface import LoraPart, LoraSite, ReplacedRows, SiteKey
from lora import variants
from lora.base_spec import BaseSpec
from lora.base_tensors import BaseTensors
from lora.manifest import LoraModule, Override
from lora.sites import EMBED_TOKENS, FUSED, LM_HEAD, SITES, ModuleKey, module_features
from lora.span_reader import SpanReader


@dataclass(slots=True)
class _Site:
    """A site as it grows. `parts` hold their A until all ranks are known."""

    num_in: int
    num_out: int
    parts: list[tuple[Tensor, Tensor, tuple[int, int]]] = field(default_factory=list)
    scale: Tensor | None = None
    bias: Tensor | None = None
    replaced: ReplacedRows | None = None

    def put_scale(self, out: tuple[int, int], scale: Tensor) -> None:
        if self.scale is None:
            self.scale = torch.ones(self.num_out)
        self.scale[out[0] : out[1]] = scale

    def add_bias(self, out: tuple[int, int], bias: Tensor) -> None:
        if self.bias is None:
            self.bias = torch.zeros(self.num_out)
        self.bias[out[0] : out[1]] += bias


class SiteBuilder:
    """Reads what it is given at once; `build` only arranges."""

    def __init__(self, reader: SpanReader, base: BaseSpec, tensors: BaseTensors) -> None:
        self._reader = reader
        self._base = base
        self._tensors = tensors
        self._sites: dict[SiteKey, _Site] = {}
        self._names = {
            module: (site, out) for site in SITES for module, out in site.outputs(base).items()
        }
        for name, site in FUSED.items():
            self._names[name] = (site, (0, module_features(base)[name][1]))

    def add_module(self, module: LoraModule) -> None:
        """A and B with the scale folded in, and DoRA's scale or B's bias with them.

        B lies rank by rank: what one rank adds is read in one piece.
        """
        key = (module.layer, module.module)
        site, out = self._place(key)
        a = self._reader.read(module.a)
        b = self._reader.read(module.b)
        if module.is_transposed:
            a, b = a.t().contiguous(), b.t()
        b = b * module.scale
        # NOTE: a fused projection's parts share A, but each has ranks of its own on a GPU.
        for begin, end in self._part_outputs(module.module, out):
            part = b[begin - out[0] : end - out[0]]
            site.parts.append((a, part.t().contiguous().t(), (begin, end)))
        if module.magnitude is not None:
            magnitude = self._reader.read(module.magnitude)
            scale = variants.dora_embedding_scale if key == EMBED_TOKENS else variants.dora_scale
            site.put_scale(out, scale(self._weight(key), a, b, magnitude))
        if module.bias is not None:
            site.add_bias(out, self._reader.read(module.bias) * module.scale)

    def add_override(self, override: Override) -> None:
        site, out = self._place(override.key)
        own = self._reader.read(override.span)
        if override.what == "bias":
            site.add_bias(out, own - self._tensors.bias(override.key))
        elif override.key in (EMBED_TOKENS, LM_HEAD):
            site.replaced = variants.replaced_rows(own, override.token_ids)
        else:
            site.put_scale(out, variants.norm_scale(self._tensors.weight(override.key), own))

    def build(self) -> dict[SiteKey, LoraSite]:
        return {key: _arranged(site) for key, site in self._sites.items()}

    def _part_outputs(self, module: str, out: tuple[int, int]) -> list[tuple[int, int]]:
        return list(FUSED[module].outputs(self._base).values()) if module in FUSED else [out]

    def _weight(self, key: ModuleKey) -> Tensor:
        """The base's weight, that of a fused projection put together."""
        layer, module = key
        if module not in FUSED:
            return self._tensors.weight(key)
        parts = FUSED[module].modules
        return torch.cat([self._tensors.weight((layer, part)) for part in parts])

    def _place(self, key: ModuleKey) -> tuple[_Site, tuple[int, int]]:
        """The site of a module, and the module's output features within it."""
        layer, module = key
        hidden, vocab = self._base.hidden_size, self._base.vocab_size
        if module in self._names:
            site, out = self._names[module]
            num_out = max(end for _, end in site.outputs(self._base).values())
            name, num_in = site.name, site.num_in(self._base)
        else:
            shapes = defaultdict(
                lambda: (hidden, hidden), {EMBED_TOKENS: (vocab, hidden), LM_HEAD: (hidden, vocab)}
            )
            name, (num_in, num_out) = module, shapes[key]
            out = (0, num_out)
        return self._sites.setdefault((layer, name), _Site(num_in, num_out)), out


def site_bytes(site: LoraSite) -> int:
    """What a site's tensors hold in memory."""
    vectors = [site.a, site.scale, site.bias, *(part.b for part in site.parts)]
    if site.replaced is not None:
        vectors += [site.replaced.rows, site.replaced.ids, site.replaced.bias]
    return sum(each.nbytes for each in vectors if each is not None)


def _arranged(site: _Site) -> LoraSite:
    """The parts in order of their outputs, their ranks one after another."""
    parts, rank_begin = [], 0
    ordered = sorted(site.parts, key=lambda part: part[2])
    for a, b, out in ordered:
        parts.append(LoraPart(b, (rank_begin, rank_begin + a.shape[0]), out))
        rank_begin += a.shape[0]
    rows = [a for a, _, _ in ordered]
    a = torch.cat(rows) if rows else torch.zeros(0, site.num_in)
    return LoraSite(a, tuple(parts), site.scale, site.bias, site.replaced)
