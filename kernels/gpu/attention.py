"""Paged attention on a GPU: a step's plan as tensors, and the launches over it.

Knows nothing of layers or requests. A plan becomes tensors when it is first used, on the device
of the query that asks; an engine that copies index arrays itself brings them ready-made
(`AttentionPlan.from_views`). Invariant: launches depend on the shapes of the plan's tensors alone,
never on what they hold, so that a captured graph is right for every step of its bucket.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np
import torch
from torch import Tensor

from kernels.gpu.attention_kernel import attend_kernel, blocks_for_group
from kernels.gpu.attention_merge import merge_kernel
from kernels.gpu.attention_plan import (
    DECODE,
    PREFILL,
    SplitPolicy,
    Tiles,
    WorkList,
    block_table_rows,
    plan_work,
)
from kernels.gpu.launch import next_power_of_2
from kernels.gpu.tuning import (
    ATTENTION_DECODE,
    ATTENTION_MERGE,
    ATTENTION_PREFILL,
    ATTENTION_PROGRAMS_PER_SM,
)
from kernels.interface import SequenceSpan

LOG2_E = math.log2(math.e)
INVARIANT_KV_LENGTH = 512
"""Where `--batch-invariant` cuts KV: at its multiples, for every batch."""
# What a device without multiprocessors (the interpreter's CPU) is planned for; small models'
# contexts are then split too.
INTERPRETER_PROGRAMS = 16


@dataclass(frozen=True, slots=True)
class HeadShape:
    """What of a model and a device the work depends on. itemsize: bytes of a query's element."""

    num_heads: int
    num_kv_heads: int
    itemsize: int

    @property
    def group(self) -> int:
        return self.num_heads // self.num_kv_heads


@dataclass(frozen=True, slots=True)
class AttentionWork:
    """A `WorkList` and its sequences' block tables [N, B] int32, on a device."""

    decode: Tensor
    prefill: Tensor
    merges: Tensor
    counts: Tensor
    block_table: Tensor
    num_partial_rows: int


class AttentionPlan:
    """One step's attention, for all layers that have one shape of heads."""

    __slots__ = ("_fixed_length", "_spans", "_work")

    def __init__(self, spans: Sequence[SequenceSpan], fixed_length: int = 0) -> None:
        self._spans = spans
        self._fixed_length = fixed_length
        self._work: dict[tuple[torch.device, HeadShape], AttentionWork] = {}

    @classmethod
    def from_views(cls, work: AttentionWork, shape: HeadShape) -> AttentionPlan:
        """`work`, already on the device, possibly padded; planned with `attention_tiles(shape)`."""
        plan = cls(())
        plan._work[work.counts.device, shape] = work
        return plan

    def on(self, device: torch.device, shape: HeadShape) -> AttentionWork:
        """The plan's tensors; made once and then remembered."""
        work = self._work.get((device, shape))
        if work is None:
            assert self._spans, "a plan made from views serves one device and one shape of heads"
            work = self._work[device, shape] = self._make(device, shape)
        return work

    def _make(self, device: torch.device, shape: HeadShape) -> AttentionWork:
        spans = self._spans
        columns = np.array(
            [(span.query_start, span.num_tokens, span.context_len) for span in spans],
            dtype=np.int32,
        )
        policy = split_policy(device, shape.num_kv_heads, self._fixed_length)
        tiles = attention_tiles(shape, one_form=self._fixed_length > 0)
        query_start, num_tokens, context_len = columns.T
        work = plan_work(query_start, num_tokens, context_len, tiles, policy)
        return place_work(work, block_table_rows([span.block_table for span in spans]), device)


def plan_attention(spans: Sequence[SequenceSpan], block_size: int) -> AttentionPlan:
    return AttentionPlan(list(spans))


def plan_attention_invariant(spans: Sequence[SequenceSpan], block_size: int) -> AttentionPlan:
    """One form of tile, KV cut at absolute positions: a row's bits depend on its context alone."""
    return AttentionPlan(list(spans), fixed_length=INVARIANT_KV_LENGTH)


def attention_tiles(shape: HeadShape, *, one_form: bool = False) -> Tiles:
    """How many tokens a tile of each form holds."""
    decode, prefill = (
        blocks_for_group(table[shape.itemsize], shape.group)["BLOCK_M"] // shape.group
        for table in (ATTENTION_DECODE, ATTENTION_PREFILL)
    )
    return Tiles(0 if one_form else decode, prefill)


def split_policy(device: torch.device, num_kv_heads: int, fixed_length: int = 0) -> SplitPolicy:
    """How `device` wants the batch cut up."""
    return SplitPolicy(_num_programs(device), num_kv_heads, fixed_length)


@cache
def _num_programs(device: torch.device) -> int:
    if device.type != "cuda":
        return INTERPRETER_PROGRAMS
    num_sms: int = torch.cuda.get_device_properties(device).multi_processor_count
    return num_sms * ATTENTION_PROGRAMS_PER_SM


def place_work(work: WorkList, block_table: np.ndarray, device: torch.device) -> AttentionWork:
    """Copies of a plan's arrays on `device`."""

    def place(array: np.ndarray) -> Tensor:
        return torch.from_numpy(array).to(device, non_blocking=True)

    return AttentionWork(
        decode=place(work.decode),
        prefill=place(work.prefill),
        merges=place(work.merges),
        counts=place(work.counts),
        block_table=place(block_table),
        num_partial_rows=work.num_partial_rows,
    )


def paged_attention(
    query: Tensor,
    key_cache: Tensor,
    value_cache: Tensor,
    plan: AttentionPlan,
    scale: float,
    *,
    window: int = 0,
    soft_cap: float = 0.0,
) -> Tensor:
    """Rows of no span are left unwritten."""
    num_tokens, num_heads, head_dim = query.shape
    shape = HeadShape(num_heads, key_cache.shape[0], query.element_size())
    work = plan.on(query.device, shape)
    out = query.new_empty(num_tokens, num_heads, head_dim)
    partial = query.new_empty(work.num_partial_rows, num_heads, head_dim, dtype=torch.float32)
    lse = query.new_empty(work.num_partial_rows, num_heads, dtype=torch.float32)
    assert key_cache.stride() == value_cache.stride()
    assert query.stride(2) == 1 and key_cache.stride(3) == 1

    score_scale = scale * LOG2_E if soft_cap == 0 else scale * LOG2_E * 2 / soft_cap
    for index, items, config in (
        (DECODE, work.decode, ATTENTION_DECODE[shape.itemsize]),
        (PREFILL, work.prefill, ATTENTION_PREFILL[shape.itemsize]),
    ):
        if items.shape[0] == 0:
            continue
        attend_kernel[(shape.num_kv_heads, items.shape[0])](
            out,
            partial,
            lse,
            query,
            key_cache,
            value_cache,
            items,
            work.counts,
            work.block_table,
            score_scale,
            query.stride(0),
            query.stride(1),
            key_cache.stride(0),
            key_cache.stride(1),
            key_cache.stride(2),
            work.block_table.stride(0),
            LIST=index,
            GROUP=shape.group,
            HEAD_DIM=head_dim,
            BLOCK_SIZE=key_cache.shape[2],
            WINDOW=window,
            SOFT_CAP=soft_cap,
            BLOCK_D=next_power_of_2(head_dim),
            **config.launch_kwargs() | blocks_for_group(config, shape.group),
        )
    if work.merges.shape[0]:
        merge_kernel[(num_heads, work.merges.shape[0])](
            out,
            partial,
            lse,
            work.merges,
            work.counts,
            HEAD_DIM=head_dim,
            BLOCK_D=next_power_of_2(head_dim),
            **ATTENTION_MERGE.launch_kwargs(),
        )
    return out
