"""Batched LoRA at the true rank of every adapter, straight from its pages: shrink and expand.

Two launches a site. Shrink: each program reads a few rows of A through the adapter's table and
multiplies them with a tile of x over one split of the input's columns; the split's result is a
*partial*. Expand sums the partials as it loads them and adds B's part to y. No atomics and no
buffer that must be zeroed, so the result is the same at every run. Knows nothing of tenants or of
loading. Invariants: a row in no tile is neither read nor written; nothing beyond an adapter's
ranks, columns or pages reaches a result.

Source: SGMV of Punica (Chen et al. 2023), here without padding ranks and through pages.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from kernels import adapter_table as words
from kernels.adapter_table import AdapterUse, PageFormat
from kernels.gpu.launch import AotVariant, ceil_div, pointer_type, round_up
from kernels.gpu.lora_kernels import expand_kernel, shrink_kernel
from kernels.gpu.lora_plan import (
    MAX_SPLITS,
    SMALL_TILE,
    LoraArrays,
    LoraShape,
    plan_tiles,
)
from kernels.gpu.tuning import LORA_EXPAND, LORA_SHRINK
from kernels.interface import LoraSegment, SiteKey


@dataclass(frozen=True, slots=True, eq=False)
class PagedAdapter:
    """An adapter in the pool: what `LoraSegment.weights` holds on a GPU.

    pool: [num_pages, page_bytes] uint8, one for all adapters of a batch. table: [words] int32 on
    the pool's device (`lora.pages.build_table`). dtype: of the vectors in the pages. The owner
    keeps both alive, and the pages in place, while a step that uses them runs.
    """

    pool: Tensor
    table: Tensor
    dtype: torch.dtype
    format: PageFormat
    use: AdapterUse


@dataclass(frozen=True, slots=True, eq=False)
class LoraPlan:
    """A step's tiles on the device (`LoraArrays` has their meaning).

    pool: the pages as [numbers] of the compute dtype. workspace: float32, for the partials; None:
    allocated as needed, which a CUDA graph's own memory pool serves too. adapters: kept alive,
    because their tables are known here by address alone.
    """

    tiles: Tensor
    tables: Tensor
    counts: Tensor
    shape: LoraShape
    pool: Tensor
    format: PageFormat
    workspace: Tensor | None = None
    adapters: tuple[PagedAdapter, ...] = ()

    @classmethod
    def from_views(
        cls,
        tiles: Tensor,
        tables: Tensor,
        counts: Tensor,
        shape: LoraShape,
        adapter: PagedAdapter,
        workspace: Tensor | None = None,
    ) -> LoraPlan:
        """A plan over tensors that the caller has filled from `LoraArrays` of `shape`.

        `adapter`: any of the pool that the batch's adapters lie in; the caller keeps all of them
        alive until the step is done.
        """
        pool = adapter.pool.view(-1).view(adapter.dtype)
        return cls(tiles, tables, counts, shape, pool, adapter.format, workspace)

    def partials(self, num_splits: int, num_rows: int, rank: int) -> Tensor:
        """[num_splits, num_rows, rank] float32, not initialised."""
        if self.workspace is None:
            shape = (num_splits, num_rows, rank)
            return torch.empty(shape, dtype=torch.float32, device=self.tiles.device)
        return self.workspace[: num_splits * num_rows * rank].view(num_splits, num_rows, rank)


def arrays_of(
    segments: Sequence[LoraSegment], *, tile_rows: int | None = None, fixed: bool = False
) -> LoraArrays:
    """The arrays of a batch whose segments hold `PagedAdapter`s."""
    adapters = list(dict.fromkeys(segment.weights for segment in segments))
    indices = {adapter: index for index, adapter in enumerate(adapters)}
    return plan_tiles(
        [(segment.start, segment.end, indices[segment.weights]) for segment in segments],
        [adapter.table.data_ptr() for adapter in adapters],
        [adapter.use for adapter in adapters],
        tile_rows=tile_rows,
        fixed=fixed,
    )


def plan_lora(segments: Sequence[LoraSegment]) -> LoraPlan | None:
    return _place_plan(segments, arrays_of(segments)) if segments else None


def plan_lora_invariant(segments: Sequence[LoraSegment]) -> LoraPlan | None:
    """Tiles, blocks and splits that do not depend on the batch."""
    return _place_plan(segments, arrays_of(segments, fixed=True)) if segments else None


def _place_plan(segments: Sequence[LoraSegment], arrays: LoraArrays) -> LoraPlan:
    """Copy the arrays to the adapters' device, each for itself."""
    adapters = tuple(dict.fromkeys(segment.weights for segment in segments))
    tiles, tables, counts = (
        torch.from_numpy(array).to(adapters[0].pool.device)
        for array in (arrays.tiles, arrays.tables, arrays.counts)
    )
    plan = LoraPlan.from_views(tiles, tables, counts, arrays.shape, adapters[0])
    return replace(plan, adapters=adapters)


def add_lora(y: Tensor, x: Tensor, plan: LoraPlan | None, key: SiteKey) -> None:
    """x, y: rows contiguous; x in the pages' dtype, y in any floating dtype."""
    if plan is None or (rank := plan.shape.max_rank(key[1])) == 0:
        return
    assert x.stride(1) == 1 and y.stride(1) == 1 and x.dtype == plan.pool.dtype
    site = plan.format.shapes[key]
    assert x.shape[1] == site.num_in and y.shape[1] == sum(site.widths)
    settings = (plan.shape.tile_rows, x.element_size())
    shrink, expand = LORA_SHRINK[settings], LORA_EXPAND[settings]
    rank_blocks = ceil_div(rank, shrink.blocks["BLOCK_R"])
    num_splits = plan.shape.num_splits(site.num_in, rank_blocks)
    partials = plan.partials(num_splits, x.shape[0], rank_blocks * shrink.blocks["BLOCK_R"])
    step_arguments = (plan.pool, plan.tables, plan.tiles, plan.counts)
    sizes = (plan.shape.num_tiles, site.index * words.HEADER_WORDS)
    shrink_kernel[(plan.shape.num_tiles, rank_blocks, num_splits)](
        x,
        partials,
        *step_arguments,
        *sizes,
        site.num_in,
        round_up(ceil_div(site.num_in, num_splits), shrink.blocks["BLOCK_K"]),
        x.stride(0),
        partials.stride(0),
        partials.stride(1),
        ITEM_BYTES=x.element_size(),
        BLOCK_T=plan.shape.tile_rows,
        **shrink.launch_kwargs(),
    )
    widths = (*site.widths, 0, 0)[: words.MAX_PARTS]
    column_blocks = sum(ceil_div(width, expand.blocks["BLOCK_N"]) for width in widths)
    expand_kernel[(plan.shape.num_tiles, column_blocks)](
        y,
        partials,
        *step_arguments,
        *sizes,
        *widths,
        plan.format.piece_columns,
        ceil_div(max(widths), plan.format.piece_columns),
        y.stride(0),
        partials.stride(0),
        partials.stride(1),
        ITEM_BYTES=x.element_size(),
        NUM_SPLITS=num_splits,
        BLOCK_T=plan.shape.tile_rows,
        **expand.launch_kwargs(),
    )


def aot_variants() -> list[AotVariant]:
    """Decode and prompt tiles in bfloat16 and float32, expand at few and at many splits."""
    variants = []
    for dtype in (torch.bfloat16, torch.float32):
        for tile_rows, max_splits in MAX_SPLITS.items():
            variants.append(_shrink_variant(dtype, tile_rows))
            variants += [_expand_variant(dtype, tile_rows, splits) for splits in (1, max_splits)]
    variants.append(_expand_variant(torch.bfloat16, SMALL_TILE, 8))
    return variants


STEP_SIGNATURE = {
    "tables_ptr": "*i64",
    "tiles_ptr": "*i32",
    "counts_ptr": "*i32",
    "num_tiles": "i32",
    "header": "i32",
}
"""Types of the arguments that all kernels over tiles share, after the pool."""


def _shrink_variant(dtype: torch.dtype, tile_rows: int) -> AotVariant:
    config = LORA_SHRINK[tile_rows, dtype.itemsize]
    constexprs = {"ITEM_BYTES": dtype.itemsize, "BLOCK_T": tile_rows, **config.blocks}
    return AotVariant(
        name=f"lora_shrink_{_name(dtype)}_t{tile_rows}",
        kernel=shrink_kernel,
        signature={
            "x_ptr": pointer_type(dtype),
            "partials_ptr": "*fp32",
            "pool_ptr": pointer_type(dtype),
            **STEP_SIGNATURE,
            "num_in": "i32",
            "split_columns": "i32",
            "stride_xt": "i32",
            "stride_ps": "i32",
            "stride_pt": "i32",
            **dict.fromkeys(constexprs, "constexpr"),
        },
        constexprs=constexprs,
        divisible=(
            *("x_ptr", "partials_ptr", "pool_ptr", "num_in", "split_columns"),
            *("stride_xt", "stride_ps", "stride_pt"),
        ),
        num_warps=config.num_warps,
        num_stages=config.num_stages,
        wants_dot=dtype != torch.float32,
        forbids_atomics=True,
    )


def _expand_variant(dtype: torch.dtype, tile_rows: int, num_splits: int) -> AotVariant:
    config = LORA_EXPAND[tile_rows, dtype.itemsize]
    constexprs = {
        "ITEM_BYTES": dtype.itemsize,
        "NUM_SPLITS": num_splits,
        "BLOCK_T": tile_rows,
        **config.blocks,
    }
    return AotVariant(
        name=f"lora_expand_{_name(dtype)}_t{tile_rows}_s{num_splits}",
        kernel=expand_kernel,
        signature={
            "y_ptr": pointer_type(dtype),
            "partials_ptr": "*fp32",
            "pool_ptr": pointer_type(dtype),
            **STEP_SIGNATURE,
            "width0": "i32",
            "width1": "i32",
            "width2": "i32",
            "piece_columns": "i32",
            "num_pieces": "i32",
            "stride_yt": "i32",
            "stride_ps": "i32",
            "stride_pt": "i32",
            **dict.fromkeys(constexprs, "constexpr"),
        },
        constexprs=constexprs,
        divisible=(
            *("y_ptr", "partials_ptr", "pool_ptr", "width0", "width1", "width2"),
            *("piece_columns", "stride_yt", "stride_ps", "stride_pt"),
        ),
        num_warps=config.num_warps,
        num_stages=config.num_stages,
        wants_dot=dtype != torch.float32,
        forbids_atomics=True,
    )


def _name(dtype: torch.dtype) -> str:
    return pointer_type(dtype).removeprefix("*")
