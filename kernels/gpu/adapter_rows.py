"""What adapters need beside LoRA, on a GPU: output scales, biases, replaced rows, the embedding.

Each op is one launch over the tiles of the step's `LoraPlan`, and none at all where no adapter of
the batch has the form. Knows nothing of loading. Invariant: the bits of a row whose adapter lacks
the form, or that has no adapter, stay as they are.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from kernels import adapter_table as words
from kernels.adapter_table import SiteShape
from kernels.gpu.adapter_rows_kernels import (
    embedding_lora_kernel,
    override_linear_kernel,
    replace_rows_kernel,
    row_vector_kernel,
)
from kernels.gpu.launch import AotVariant, ceil_div, pointer_type
from kernels.gpu.lora import STEP_SIGNATURE, LoraPlan
from kernels.gpu.lora_plan import SMALL_TILE
from kernels.gpu.tuning import (
    EMBEDDING_LORA,
    OVERRIDE_LINEAR,
    REPLACE_ROWS,
    ROW_VECTOR,
    LaunchConfig,
)
from kernels.interface import SiteKey


def scale_output(y: Tensor, bias: Tensor | None, plan: LoraPlan | None, key: SiteKey) -> None:
    if plan is not None and key[1] in plan.shape.scaled:
        _apply_row_vector(y, bias, plan, key, is_scale=True)


def add_row_bias(y: Tensor, plan: LoraPlan | None, key: SiteKey) -> None:
    if plan is not None and key[1] in plan.shape.biased:
        _apply_row_vector(y, None, plan, key, is_scale=False)


def replace_embedding_rows(
    hidden: Tensor, input_ids: Tensor, plan: LoraPlan | None, key: SiteKey
) -> None:
    if plan is None or plan.shape.max_rows(key[1]) == 0:
        return
    assert hidden.stride(1) == 1
    replace_rows_kernel[(plan.shape.num_tiles, plan.shape.tile_rows)](
        hidden,
        input_ids,
        plan.pool,
        *_step_arguments(plan, plan.format.shapes[key]),
        hidden.shape[1],
        hidden.stride(0),
        ITEM_BYTES=plan.format.itemsize,
        **REPLACE_ROWS.launch_kwargs(),
    )


def add_embedding_lora(
    hidden: Tensor, input_ids: Tensor, plan: LoraPlan | None, key: SiteKey
) -> None:
    if plan is None or plan.shape.max_rank(key[1]) == 0:
        return
    assert hidden.stride(1) == 1
    width = hidden.shape[1]
    column_blocks = ceil_div(width, EMBEDDING_LORA.blocks["BLOCK_H"])
    embedding_lora_kernel[(plan.shape.num_tiles, plan.shape.tile_rows, column_blocks)](
        hidden,
        input_ids,
        plan.pool,
        *_step_arguments(plan, plan.format.shapes[key]),
        width,
        plan.format.piece_columns,
        ceil_div(width, plan.format.piece_columns),
        hidden.stride(0),
        ITEM_BYTES=plan.format.itemsize,
        **EMBEDDING_LORA.launch_kwargs(),
    )


def override_linear(y: Tensor, x: Tensor, plan: LoraPlan | None, key: SiteKey) -> None:
    if plan is None or (max_rows := plan.shape.max_rows(key[1])) == 0:
        return
    assert x.stride(1) == 1 and y.stride(1) == 1 and x.dtype == plan.pool.dtype
    config = OVERRIDE_LINEAR[x.element_size()]
    override_linear_kernel[(plan.shape.num_tiles, ceil_div(max_rows, config.blocks["BLOCK_N"]))](
        y,
        x,
        plan.pool,
        plan.pool.view(torch.float32),
        *_step_arguments(plan, plan.format.shapes[key]),
        x.shape[1],
        plan.format.piece_columns,
        y.stride(0),
        x.stride(0),
        ITEM_BYTES=x.element_size(),
        BLOCK_T=plan.shape.tile_rows,
        **config.launch_kwargs(),
    )


def _apply_row_vector(
    y: Tensor, base_bias: Tensor | None, plan: LoraPlan, key: SiteKey, *, is_scale: bool
) -> None:
    assert y.stride(1) == 1
    num_columns = y.shape[1]
    grid = (plan.shape.num_tiles, ceil_div(num_columns, ROW_VECTOR.blocks["BLOCK_N"]))
    row_vector_kernel[grid](
        y,
        y if base_bias is None else base_bias,
        plan.pool.view(torch.float32),
        *_step_arguments(plan, plan.format.shapes[key]),
        num_columns,
        plan.format.piece_columns,
        y.stride(0),
        IS_SCALE=is_scale,
        HAS_BASE_BIAS=base_bias is not None,
        BLOCK_T=plan.shape.tile_rows,
        **ROW_VECTOR.launch_kwargs(),
    )


def _step_arguments(plan: LoraPlan, site: SiteShape) -> tuple[Any, ...]:
    header = site.index * words.HEADER_WORDS
    return (plan.tables, plan.tiles, plan.counts, plan.shape.num_tiles, header)


def aot_variants() -> list[AotVariant]:
    """In bfloat16; the override in float32 too, whose product has settings of its own."""
    matrix, floats = pointer_type(torch.bfloat16), "*fp32"
    hidden = {"hidden_ptr": matrix, "input_ids_ptr": "*i64", "pool_ptr": matrix}
    vector = {"y_ptr": matrix, "base_bias_ptr": matrix, "floats_ptr": floats}
    shape = {"ITEM_BYTES": 2}
    return [
        *(
            _variant(
                f"row_{name}_bf16",
                row_vector_kernel,
                ROW_VECTOR,
                vector,
                ("num_columns", "piece_columns", "stride_yt"),
                {"IS_SCALE": is_scale, "HAS_BASE_BIAS": is_scale, "BLOCK_T": SMALL_TILE},
            )
            for name, is_scale in (("scale", True), ("bias", False))
        ),
        _variant(
            "replace_rows_bf16",
            replace_rows_kernel,
            REPLACE_ROWS,
            hidden,
            ("num_columns", "stride_ht"),
            shape,
        ),
        _variant(
            "embedding_lora_bf16",
            embedding_lora_kernel,
            EMBEDDING_LORA,
            hidden,
            ("num_columns", "piece_columns", "num_pieces", "stride_ht"),
            shape,
        ),
        *(_override_variant(dtype) for dtype in (torch.bfloat16, torch.float32)),
    ]


def _override_variant(dtype: torch.dtype) -> AotVariant:
    matrix = pointer_type(dtype)
    return _variant(
        f"override_linear_{matrix.removeprefix('*')}",
        override_linear_kernel,
        OVERRIDE_LINEAR[dtype.itemsize],
        {"y_ptr": matrix, "x_ptr": matrix, "pool_ptr": matrix, "floats_ptr": "*fp32"},
        ("num_in", "piece_columns", "stride_yt", "stride_xt"),
        {"ITEM_BYTES": dtype.itemsize, "BLOCK_T": SMALL_TILE},
        wants_dot=dtype != torch.float32,
    )


def _variant(
    name: str,
    kernel: Any,
    config: LaunchConfig,
    tensors: dict[str, str],
    sizes: tuple[str, ...],
    constants: dict[str, Any],
    *,
    wants_dot: bool = False,
) -> AotVariant:
    constexprs = {**constants, **config.blocks}
    not_divisible = {"num_pieces"}
    return AotVariant(
        name=name,
        kernel=kernel,
        signature={
            **tensors,
            **STEP_SIGNATURE,
            **dict.fromkeys(sizes, "i32"),
            **dict.fromkeys(constexprs, "constexpr"),
        },
        constexprs=constexprs,
        divisible=(*tensors, *(size for size in sizes if size not in not_divisible)),
        num_warps=config.num_warps,
        num_stages=config.num_stages,
        wants_dot=wants_dot,
        forbids_atomics=True,
    )
