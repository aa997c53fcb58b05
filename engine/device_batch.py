"""A step's layout as arrays for the device, and their views there as a forward batch.

Padding to a bucket happens here, so that one captured graph serves every decode step that fits
it. Knows nothing of buffers or graphs. Invariant: what a batch launches depends on
`DeviceStep.key` alone, never on what the arrays hold.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from engine.forward_batch import ForwardBatch, StepLayout, sampling_segments
from engine.sampler import sampling_arrays
from engine.step_buffer import Array
from kernels.gpu.attention import (
    INVARIANT_KV_LENGTH,
    AttentionPlan,
    AttentionWork,
    HeadShape,
    attention_tiles,
    split_policy,
)
from kernels.gpu.attention_plan import WorkList, block_table_rows, decode_capacity, plan_work
from kernels.gpu.lora import LoraPlan, arrays_of
from kernels.gpu.lora_plan import SMALL_TILE, LoraArrays, LoraShape
from kernels.interface import LoraSegment, SequenceSpan
from lora.sites import SAMPLING_SITES

NUM_SAMPLING_ARRAYS = 5
TABLE_WIDTHS = [1 << exponent for exponent in range(10, 31, 2)]
"""Blocks: at the first, 16384 tokens of a block size of 16."""


@dataclass(frozen=True, slots=True)
class DeviceStep:
    """One step, planned. `arrays` are what the buffer carries to the device, in order."""

    layout: StepLayout
    heads: HeadShape
    arrays: list[Array]
    num_partial_rows: int
    lora: LoraShape | None
    """Sizes of LoRA's launches; None where every row is the base's, so that there are none."""
    head: LoraShape | None = None
    """The same over the rows that sample, where an adapter changes what becomes of those."""
    rows_are_sampling: bool = False
    """Every row samples, so that `lora` serves for the head too."""

    @property
    def key(self) -> Hashable:
        """Two steps of one key launch the same kernels over the same addresses."""
        shapes = tuple((array.shape, array.dtype.str) for array in self.arrays)
        return (shapes, self.num_partial_rows, self.lora, self.head)

    def batch(self, views: Sequence[Tensor]) -> ForwardBatch:
        """The forward batch over `views`, one for each of `arrays`."""
        input_ids, positions, slot_mapping, logits_rows, *views = views
        decode, prefill, merges, counts, tables, *views = views
        work = AttentionWork(decode, prefill, merges, counts, tables, self.num_partial_rows)
        lora = head = None
        if self.lora is not None:
            any_adapter = self.layout.segments[0].weights
            tiles, addresses, num_tiles, *views = views
            lora = LoraPlan.from_views(tiles, addresses, num_tiles, self.lora, any_adapter)
            if self.head is not None and not self.rows_are_sampling:
                tiles, addresses, num_tiles, *_ = views
                head = LoraPlan.from_views(tiles, addresses, num_tiles, self.head, any_adapter)
            elif self.head is not None:
                head = lora
        return ForwardBatch(
            input_ids=input_ids,
            positions=positions,
            slot_mapping=slot_mapping,
            attention_plan=AttentionPlan.from_views(work, self.heads),
            lora=lora,
            logits_rows=logits_rows,
            sampling=self.layout.sampling,
            draws=self.layout.draws,
            row_forms=lora,
            head_forms=head,
        )

    def sampling_views(self, views: Sequence[Tensor]) -> list[Tensor]:
        """What `sample` takes after the logits, a row each; none where all are greedy."""
        if all(draw.temperature == 0 for draw in self.layout.draws):
            return []
        num_rows = len(self.layout.draws)
        return [view[:num_rows] for view in views[-NUM_SAMPLING_ARRAYS:]]


class BatchPlanner:
    """Plans steps for one model on one device."""

    def __init__(
        self,
        heads: HeadShape,
        device: torch.device,
        *,
        block_size: int,
        max_num_blocks: int,
        batch_invariant: bool,
    ) -> None:
        fixed_length = INVARIANT_KV_LENGTH if batch_invariant else 0
        self._batch_invariant = batch_invariant
        self._heads = heads
        self._tiles = attention_tiles(heads, one_form=batch_invariant)
        self._policy = split_policy(device, heads.num_kv_heads, fixed_length)
        self._block_size = block_size
        self._max_num_blocks = max_num_blocks

    def plan(self, layout: StepLayout) -> DeviceStep:
        """A step at its own sizes, whatever it mixes."""
        work = self._attention_work(layout)
        tables = block_table_rows([self._blocks(span) for span in layout.spans])
        lora, head = self._lora_arrays(layout.segments), None
        if lora is not None and _is_at_head(lora.shape):
            head = self._lora_arrays(sampling_segments(layout.segments, layout.logits_rows))
        arrays = [*_row_arrays(layout), *_work_arrays(work), tables, *_plan_arrays(lora)]
        arrays += _plan_arrays(head)
        arrays += sampling_arrays(layout.draws)
        shapes = (_shape_of(lora), _shape_of(head))
        return DeviceStep(layout, self._heads, arrays, work.num_partial_rows, *shapes)

    def plan_padded(self, layout: StepLayout, bucket: int) -> DeviceStep:
        """A step of at most `bucket` sequences, each of one token and sampling, padded to it.

        Rows that pad it compute token 0 at position 0, store no K and V, attend to nothing, have
        no adapter, and give logits that nobody reads.
        """
        work = self._padded_work(layout, bucket)
        lora = self._lora_arrays(layout.segments, tile_rows=SMALL_TILE)
        if lora is not None:
            lora = lora.padded_to(lora.shape.for_graph(bucket, bucket))
        input_ids, positions, slots, _ = _row_arrays(layout)
        arrays = [_pad(input_ids, bucket, 0), _pad(positions, bucket, 0), _pad(slots, bucket)]
        arrays += [np.arange(bucket), *_work_arrays(work), self._wide_tables(layout, bucket)]
        arrays += _plan_arrays(lora)
        arrays += [_pad(each, bucket, 0) for each in sampling_arrays(layout.draws, always=True)]
        shape = _shape_of(lora)
        head = shape if shape is not None and _is_at_head(shape) else None
        return DeviceStep(
            layout, self._heads, arrays, work.num_partial_rows, shape, head, rows_are_sampling=True
        )

    def _padded_work(self, layout: StepLayout, bucket: int) -> WorkList:
        work = self._attention_work(layout)
        max_context = self._max_num_blocks * self._block_size
        capacity = decode_capacity(bucket, max_context, self._policy)
        num_items = (capacity.num_items, 0) if self._tiles.decode else (0, capacity.num_items)
        return WorkList(
            _pad(work.decode, num_items[0]),
            _pad(work.prefill, num_items[1]),
            _pad(work.merges, capacity.num_merges),
            work.counts,
            capacity.num_partial_rows,
        )

    def _lora_arrays(
        self, segments: Sequence[LoraSegment], tile_rows: int | None = None
    ) -> LoraArrays | None:
        if not segments:
            return None
        return arrays_of(segments, tile_rows=tile_rows, fixed=self._batch_invariant)

    def _attention_work(self, layout: StepLayout) -> WorkList:
        spans = [(each.query_start, each.num_tokens, each.context_len) for each in layout.spans]
        query_start, num_tokens, context_len = np.array(spans, dtype=np.int32).T
        return plan_work(query_start, num_tokens, context_len, self._tiles, self._policy)

    def _blocks(self, span: SequenceSpan) -> Sequence[int]:
        """The block table may be longer already; a step reads no further than its context."""
        return span.block_table[: -(-span.context_len // self._block_size)]

    def _wide_tables(self, layout: StepLayout, bucket: int) -> Array:
        """[bucket, width]: few widths, since a graph is right for one; all multiples of 16."""
        longest = max(span.context_len for span in layout.spans) // self._block_size + 1
        width = next(each for each in TABLE_WIDTHS if each >= longest)
        rows = np.full((bucket, width), -1, dtype=np.int32)
        for row, span in zip(rows, layout.spans, strict=False):
            blocks = self._blocks(span)
            row[: len(blocks)] = blocks
        return rows


def _shape_of(arrays: LoraArrays | None) -> LoraShape | None:
    return arrays.shape if arrays is not None else None


def _is_at_head(shape: LoraShape) -> bool:
    """Whether an adapter of the batch changes what becomes of the rows that sample."""
    return any(
        shape.max_rank(name) or shape.max_rows(name) or name in shape.scaled | shape.biased
        for _, name in SAMPLING_SITES
    )


def is_decode(layout: StepLayout) -> bool:
    """Whether every sequence computes one token and samples the next."""
    return len(layout.input_ids) == len(layout.spans) == len(layout.sampling)


def _row_arrays(layout: StepLayout) -> list[Array]:
    lists = (layout.input_ids, layout.positions, layout.slot_mapping, layout.logits_rows)
    return [np.array(each, dtype=np.int64) for each in lists]


def _work_arrays(work: WorkList) -> list[Array]:
    return [work.decode, work.prefill, work.merges, work.counts]


def _plan_arrays(lora: LoraArrays | None) -> list[Array]:
    return [lora.tiles, lora.tables, lora.counts] if lora is not None else []


def _pad(array: Array, num_rows: int, value: int = -1) -> Array:
    """`array` with rows of `value` up to `num_rows`; kernels must not look at them."""
    padded = np.full((num_rows, *array.shape[1:]), value, dtype=array.dtype)
    padded[: len(array)] = array
    return padded
