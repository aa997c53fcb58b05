"""Executes a step: forward batch -> decoder -> sampled tokens.

Knows nothing of scheduling. Chooses the kernel backend once and wraps the decoder's layers for
adapters once, at construction.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor

from engine.config import EngineConfig
from engine.evidence import take_evidence
from engine.forward_batch import ForwardBatch, build_forward_batch, lay_out
from engine.kv_cache import CacheShape, LayeredKVCache
from engine.models.decoder import Decoder
from engine.models.loader import load_decoder
from engine.residency import Residency
from engine.sampler import sample_rows
from engine.scheduler import Step
from engine.step_handle import CompletedStep, StepHandle
from engine.swap import LayeredSwapper
from kernels.backends import choose_backend
from kernels.interface import KernelBackend
from lora.base_spec import BaseSpec
from lora.base_tensors import BaseTensors
from lora.layer import LoraEmbedding, LoraHead, LoraLinear, LoraNorm, Norm
from lora.sites import DOWN, GATE_UP, LAYER_NORMS, NORM, OUT, QKV
from lora.weights import LoraWeights

TORCH_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}


class ModelRunner:
    """One base model with its KV storage, ready to execute steps."""

    max_in_flight = 1
    """Steps that may be launched and not collected; here a step is complete when it is launched."""

    def __init__(self, config: EngineConfig, base: BaseSpec, folder: Path) -> None:
        self.config = config
        self._ops = choose_backend(config.kernel_backend, batch_invariant=config.batch_invariant)
        self._block_size = config.block_size
        dtype = TORCH_DTYPES[config.dtype]
        self.base_tensors = BaseTensors(folder, base, dtype)
        with torch.inference_mode():
            self._decoder = load_decoder(folder, base, dtype, self._ops, torch.device("cpu"))
            wrap_layers(self._decoder, self._ops)
            self.kv_cache = LayeredKVCache(cache_shape(config, base), config.num_pages(base))
        swapper = LayeredSwapper(self.kv_cache)
        self.swap_out, self.swap_in = swapper.swap_out, swapper.swap_in

    @torch.inference_mode()
    def execute(self, step: Step, residency: Residency) -> StepHandle:
        """Compute the step's tokens; sample for each sequence that has all of them now."""
        batch = self.prepare(step, residency)
        logits = self.forward(batch)
        if not batch.sampling:
            return CompletedStep([], [])
        take_evidence(logits, batch.sampling)
        outcomes = sample_rows(logits, batch.sampling, batch.draws, self._ops)
        return CompletedStep(batch.sampling, outcomes)

    def poison_pages(self, pages: Sequence[int]) -> None:
        self.kv_cache.poison(pages)

    def prepare(self, step: Step, residency: Residency) -> ForwardBatch:
        layout = lay_out(step, self._block_size)
        return build_forward_batch(layout, self._ops, self._block_size)

    def prepare_adapter(self, weights: LoraWeights) -> LoraWeights:
        """An adapter's tensors are read where the loader left them."""
        return weights

    def forward(self, batch: ForwardBatch) -> Tensor:
        """Logits [M, V] float32 of the rows that sample."""
        return self._decoder.forward(batch, self.kv_cache)


def cache_shape(config: EngineConfig, base: BaseSpec) -> CacheShape:
    dtype = TORCH_DTYPES[config.dtype]
    return CacheShape(base.num_layers, base.num_kv_heads, config.block_size, base.head_dim, dtype)


def wrap_layers(decoder: Decoder, ops: KernelBackend) -> None:
    """Let adapters change the embedding, every norm, every linear site, and the head."""

    def norm(base: Norm, layer: int, name: str) -> LoraNorm:
        return LoraNorm(base, (layer, name), ops, is_final=False)

    decoder.embedding = LoraEmbedding(decoder.embedding, ops)
    input_norm, post_attention_norm = LAYER_NORMS
    for index, layer in enumerate(decoder.layers):
        layer.input_norm = norm(layer.input_norm, index, input_norm)
        layer.qkv_proj = LoraLinear(layer.qkv_proj, index, QKV.name, ops)
        layer.o_proj = LoraLinear(layer.o_proj, index, OUT.name, ops)
        layer.post_attention_norm = norm(layer.post_attention_norm, index, post_attention_norm)
        layer.gate_up_proj = LoraLinear(layer.gate_up_proj, index, GATE_UP.name, ops)
        layer.down_proj = LoraLinear(layer.down_proj, index, DOWN.name, ops)
    decoder.norm = LoraNorm(decoder.norm, NORM, ops, is_final=True)
    decoder.lm_head = LoraHead(decoder.lm_head, ops)
