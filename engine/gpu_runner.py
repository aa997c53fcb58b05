"""Executes steps through the Triton kernels: launches, and answers when the device is done.

Knows nothing of scheduling, and CUDA only as a `Device`: on a host the same code runs in Triton's
interpreter. A step's ids stay on the device, where the next step finds them; decode steps are
padded to a bucket and replayed as graphs. Invariant: `execute` never waits for the device, and
what it reads of a step it has read when it returns.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from engine import adapter_pages
from engine.adapter_pages import HostPages
from engine.config import EngineConfig
from engine.device import Device, Event
from engine.device_batch import BatchPlanner, is_decode
from engine.evidence import take_evidence
from engine.forward_batch import ForwardBatch, StepLayout, lay_out
from engine.graphs import DecodeGraphs, buckets
from engine.kv_cache import PagedKVCache
from engine.model_runner import TORCH_DTYPES, cache_shape, wrap_layers
from engine.models.loader import load_decoder
from engine.pool_size import drawn_step, measure_pool_bytes
from engine.residency import Residency
from engine.row_failures import NONFINITE_LOGITS, Outcome
from engine.sampler import are_finite
from engine.scheduler import Step
from engine.sequence import Sequence as EngineSequence
from engine.step_buffer import StepBuffer, views
from engine.step_handle import StepHandle
from engine.swap import HostCopy, Swapper, Transfer
from kernels.backends import choose_backend
from kernels.gpu.attention import HeadShape
from lora.base_spec import BaseSpec
from lora.base_tensors import BaseTensors
from lora.layout import page_format
from lora.weights import LoraWeights


@dataclass(frozen=True, slots=True)
class LaunchedStep:
    """A step in the device's queue.

    ids: [len(sampling)] int64 on the host, once `done`; below 0 where the logits are not finite.
    """

    sampling: Sequence[EngineSequence]
    ids: Tensor
    done: Event

    def result(self) -> Mapping[EngineSequence, Outcome]:
        self.done.wait()
        found = zip(self.sampling, self.ids.tolist(), strict=True)
        return {
            sequence: token_id if token_id >= 0 else NONFINITE_LOGITS
            for sequence, token_id in found
        }


class GpuRunner:
    """One base model with the page pool, on one device."""

    def __init__(
        self,
        config: EngineConfig,
        base: BaseSpec,
        folder: Path,
        device: Device,
        *,
        max_in_flight: int = 2,
    ) -> None:
        self.max_in_flight = max_in_flight
        self._base = base
        self._device = device
        self._dtype = TORCH_DTYPES[config.dtype]
        self.base_tensors = BaseTensors(folder, base, self._dtype)
        self._block_size = config.block_size
        self._buckets = buckets(config.max_num_seqs)
        self._ops = choose_backend(config.kernel_backend, batch_invariant=config.batch_invariant)
        self._buffer = StepBuffer(device, depth=max_in_flight)
        with torch.inference_mode():
            self._decoder = load_decoder(folder, base, self._dtype, self._ops, device.target)
            wrap_layers(self._decoder, self._ops)
            self._sampled = torch.zeros(
                config.max_num_seqs, dtype=torch.int64, device=device.target
            )
        self.config = self._sized(config)
        self._open(self.config)
        if device.memory() is not None:
            self._capture_graphs()

    @torch.inference_mode()
    def execute(self, step: Step, residency: Residency) -> StepHandle:
        """Launch the step's tokens, and the draw for each sequence that has all of them now."""
        return self._launch(lay_out(step, self._block_size))

    def poison_pages(self, pages: Sequence[int]) -> None:
        self.kv_cache.poison(pages)

    def swap_out(self, pages: Sequence[int]) -> HostCopy:
        return self._swapper.swap_out(pages)

    def swap_in(self, copy: HostCopy, pages: Sequence[int]) -> Transfer:
        return self._swapper.swap_in(copy, pages)

    def prepare_adapter(self, weights: LoraWeights) -> HostPages:
        """For loader threads: an adapter as the pages that this runner's kernels read."""
        return adapter_pages.prepare(
            weights, self._page_format, self._dtype, self.kv_cache.pages, self._device
        )

    def forward(self, layout: StepLayout) -> tuple[Tensor, list[Tensor]]:
        """Queue a step: logits [M, V] float32 of the rows that sample, and what `sample` takes."""
        if is_decode(layout):
            bucket = next(size for size in self._buckets if size >= len(layout.input_ids))
            step = self._planner.plan_padded(layout, bucket)
            replayed = self._graphs.run(step)
            if replayed is not None:
                logits, found = replayed
                return logits[: len(layout.sampling)], step.sampling_views(found)
        step = self._planner.plan(layout)
        found = views(self._buffer.upload(step.arrays), step.arrays)
        return self._compute(step.batch(found)), step.sampling_views(found)

    def _launch(self, layout: StepLayout) -> LaunchedStep:
        logits, sampling = self.forward(layout)
        num_rows = len(layout.sampling)
        ids = self._device.host_empty(8 * num_rows).view(torch.int64)
        if num_rows:
            sampled = self._ops.sample(logits, *sampling) if sampling else logits.argmax(dim=-1)
            outcome = torch.where(are_finite(logits), sampled, -1)
            # NOTE: the next step looks this id up, whatever becomes of its row.
            last_id = self._base.vocab_size - 1
            torch.clamp(outcome, 0, last_id, out=self._sampled[:num_rows])
            ids.copy_(outcome, non_blocking=True)
            take_evidence(logits, layout.sampling)
        return LaunchedStep(layout.sampling, ids, self._device.record())

    def _compute(self, batch: ForwardBatch) -> Tensor:
        return self._decoder.forward(batch.with_ids(self._resolve(batch.input_ids)), self.kv_cache)

    def _resolve(self, input_ids: Tensor) -> Tensor:
        """Put what the step before sampled, row `-1 - id` of it, in the place of an id below 0."""
        rows = (-1 - input_ids).clamp_min_(0)
        return torch.where(input_ids < 0, self._sampled[rows], input_ids)

    def _sized(self, config: EngineConfig) -> EngineConfig:
        """`config` with the size of the pool, measured where the device is what limits it."""
        if config.pool_bytes is not None or self._device.memory() is None:
            return config
        self._open(config.with_pool_bytes(config.page_bytes(self._base)))
        self._run_drawn_step(config.max_num_seqs, config.max_num_batched_tokens)
        pool_bytes = measure_pool_bytes(self._device, config.gpu_memory_utilization)
        return config.with_pool_bytes(pool_bytes)

    def _capture_graphs(self) -> None:
        """Those of the base, so that no request waits for them; those with adapters come later."""
        for size in self._buckets:
            self._run_drawn_step(size, size)

    @torch.inference_mode()
    def _run_drawn_step(self, num_seqs: int, num_tokens: int) -> None:
        step = drawn_step(num_seqs, num_tokens, self._block_size, self._base.max_model_len)
        self._launch(lay_out(step, self._block_size)).result()

    @torch.inference_mode()
    def _open(self, config: EngineConfig) -> None:
        """The page pool, and what depends on where it lies and how large it is."""
        base = self._base
        page_bytes, num_pages = config.page_bytes(base), config.num_pages(base)
        shape = cache_shape(config, base)
        self.kv_cache = PagedKVCache(shape, num_pages, page_bytes, self._device.target)
        self._swapper = Swapper(self.kv_cache.pages, self._device, self._ops)
        self._page_format = page_format(base, page_bytes, self._dtype.itemsize)
        self._planner = BatchPlanner(
            HeadShape(base.num_heads, base.num_kv_heads, self._dtype.itemsize),
            self._device.target,
            block_size=config.block_size,
            max_num_blocks=-(-base.max_model_len // config.block_size),
            batch_invariant=config.batch_invariant,
        )
        self._graphs = DecodeGraphs(self._device, self._buffer, self._compute)
