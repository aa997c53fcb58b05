"""Where each vector of an adapter lies in its pages. Torch-free: needs no weights, only ranks.

On a CPU an adapter's tensors are contiguous and the pages are accounting (`num_pages`). On a GPU
its vectors lie in pages in order of (site, side, rank) and are found through a table
(`kernels.adapter_table` has its words). Invariants: a vector starts at a multiple of 128 bytes
and straddles no page; nothing is padded to a maximum, so the charge depends on true ranks alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from kernels import adapter_table as words
from kernels.adapter_table import AdapterUse, PageFormat, SiteKey, SiteShape
from lora.base_spec import BaseSpec
from lora.layout_builder import LayoutBuilder, VectorGroup
from lora.sites import EMBED_TOKENS, LAYER_NORMS, LM_HEAD, NORM, SITES


def num_pages(num_bytes: int, page_bytes: int) -> int:
    """Whole pages that hold `num_bytes`; an adapter takes at least one."""
    return max(1, -(-num_bytes // page_bytes))


@dataclass(frozen=True, slots=True, eq=False)
class RowsContent:
    """Rows of a weight matrix that an adapter has in place of the base's, for the output features
    (at the embedding: the token ids) `ids`, ascending; None: for row 0, 1, ... in order."""

    count: int
    ids: NDArray[np.int32] | None = None
    has_bias: bool = False


@dataclass(frozen=True, slots=True, eq=False)
class SiteContent:
    """What an adapter has at one site. `ranks`: one a part of the site; 0: leaves it alone."""

    ranks: tuple[int, ...]
    has_scale: bool = False
    has_bias: bool = False
    replaced: RowsContent | None = None


@dataclass(frozen=True, slots=True, eq=False)
class AdapterLayout:
    """An adapter's vectors placed in `num_pages` pages of its own, counted from 0.

    table: int32, the words; those at `place_words` are places in units of `UNIT_BYTES` from the
    start of page 0, which `lora.pages.build_table` turns into places in the pool.
    num_bytes: what the vectors hold, without alignment and page tails.
    """

    format: PageFormat
    num_pages: int
    num_bytes: int
    groups: tuple[VectorGroup, ...]
    table: NDArray[np.int32]
    place_words: NDArray[np.int64]
    use: AdapterUse

    @property
    def waste(self) -> float:
        """Share of the pages that holds nothing."""
        return 1 - self.num_bytes / (self.num_pages * self.format.page_bytes)


def site_shapes(base: BaseSpec) -> dict[SiteKey, SiteShape]:
    """All sites of `base` with their headers' places, in the order in which vectors lie."""
    shapes: dict[SiteKey, SiteShape] = {}
    for layer in range(base.num_layers):
        for site in SITES:
            widths = tuple(end - begin for begin, end in site.outputs(base).values())
            shapes[layer, site.name] = SiteShape(len(shapes), site.num_in(base), widths)
    shapes[EMBED_TOKENS] = SiteShape(len(shapes), base.vocab_size, (base.hidden_size,))
    shapes[LM_HEAD] = SiteShape(len(shapes), base.hidden_size, (base.vocab_size,))
    norms = [(layer, name) for layer in range(base.num_layers) for name in LAYER_NORMS]
    for key in [*norms, NORM]:
        shapes[key] = SiteShape(len(shapes), base.hidden_size, (base.hidden_size,))
    return shapes


def page_format(base: BaseSpec, page_bytes: int, itemsize: int) -> PageFormat:
    """What the adapters of an engine share; made once."""
    return PageFormat(site_shapes(base), page_bytes, itemsize)


def uniform_content(
    base: BaseSpec, modules: Iterable[str], rank: int
) -> dict[SiteKey, SiteContent]:
    """An adapter of one rank on `modules` ("self_attn.q_proj", ...) of every layer."""
    wanted = set(modules)
    content: dict[SiteKey, SiteContent] = {}
    for site in SITES:
        ranks = tuple(rank if module in wanted else 0 for module in site.modules)
        if any(ranks):
            content |= {(layer, site.name): SiteContent(ranks) for layer in range(base.num_layers)}
    return content


def plan_layout(content: Mapping[SiteKey, SiteContent], page_format: PageFormat) -> AdapterLayout:
    """Place everything that `content` names.

    Raises:
        ValueError: a vector is longer than a page.
        KeyError: a site that the base has not.
    """
    builder = LayoutBuilder(page_format)
    for key in sorted(content, key=lambda key: page_format.shapes[key].index):
        _place_site(builder, key, page_format.shapes[key], content[key])
    return AdapterLayout(
        format=page_format,
        num_pages=builder.num_pages,
        num_bytes=sum(group.num_bytes for group in builder.groups),
        groups=tuple(builder.groups),
        table=builder.table(),
        place_words=builder.place_words(),
        use=_use(content),
    )


def _place_site(builder: LayoutBuilder, key: SiteKey, shape: SiteShape, site: SiteContent) -> None:
    assert len(site.ranks) == len(shape.widths)
    header = builder.header[shape.index]
    width, rank = sum(shape.widths), sum(site.ranks)
    for part in range(words.MAX_PARTS):
        header[words.RANKS + part] = sum(site.ranks[: part + 1])
    if rank and key == EMBED_TOKENS:
        header[words.A] = builder.place_matrix(key, "a", shape.num_in, rank)
    elif rank:
        header[words.A] = builder.place_vectors(key, "a", rank, shape.num_in)
    if rank:
        header[words.B] = builder.place_columns(key, shape.widths, site.ranks)
    if site.has_scale:
        header[words.SCALE] = builder.place_floats(key, "scale", width)
    if site.has_bias:
        header[words.BIAS] = builder.place_floats(key, "bias", width)
    if (rows := site.replaced) is not None:
        length = width if key == EMBED_TOKENS else shape.num_in
        header[words.REPLACED] = builder.place_matrix(
            key, "rows", rows.count, length, rows.ids, has_bias=rows.has_bias
        )


def _use(content: Mapping[SiteKey, SiteContent]) -> AdapterUse:
    max_ranks: dict[str, int] = {}
    max_replaced: dict[str, int] = {}
    for (_, name), site in content.items():
        max_ranks[name] = max(max_ranks.get(name, 0), sum(site.ranks))
        if site.replaced is not None:
            max_replaced[name] = max(max_replaced.get(name, 0), site.replaced.count)
    return AdapterUse(
        {name: rank for name, rank in max_ranks.items() if rank},
        frozenset(name for (_, name), site in content.items() if site.has_scale),
        frozenset(name for (_, name), site in content.items() if site.has_bias),
        max_replaced,
    )
