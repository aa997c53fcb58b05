"""The product's decoder with random weights, and batches for it in which every row decodes.

Knows nothing of schedulers. Rows are shared out to adapters in runs, as the engine sorts them.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from bench.gpu_inputs import Pool
from engine.forward_batch import ForwardBatch
from engine.model_runner import wrap_layers
from engine.models.decoder import (
    AttentionShape,
    Decoder,
    DecoderLayer,
    PackedLinear,
    RmsNorm,
    TokenEmbedding,
)
from kernels import gpu
from kernels.gpu.lora import PagedAdapter
from kernels.interface import LoraSegment
from lora.base_spec import BaseSpec
from lora.sites import DOWN, GATE_UP, OUT, QKV, Site

EPS = 1e-5
WEIGHT_STD = 0.02


def random_decoder(base: BaseSpec, dtype: torch.dtype, device: torch.device) -> Decoder:
    """Its layers wrapped for adapters, on the GPU backend."""

    def weight(*shape: int) -> Tensor:
        return torch.empty(shape, dtype=dtype, device=device).normal_(std=WEIGHT_STD)

    def linear(site: Site) -> PackedLinear:
        width = max(end for _, end in site.outputs(base).values())
        return PackedLinear(weight(width, site.num_in(base)), None, gpu)

    def norm() -> RmsNorm:
        return RmsNorm(torch.ones(base.hidden_size, dtype=dtype, device=device), EPS, gpu)

    layers = [
        DecoderLayer(norm(), linear(QKV), linear(OUT), norm(), linear(GATE_UP), linear(DOWN))
        for _ in range(base.num_layers)
    ]
    angles = torch.rand(base.max_model_len, base.head_dim // 2, device=device) * 6
    angles = torch.cat([angles, angles], dim=-1)
    decoder = Decoder(
        embedding=TokenEmbedding(weight(base.vocab_size, base.hidden_size)),
        layers=layers,
        norm=norm(),
        lm_head=PackedLinear(weight(base.vocab_size, base.hidden_size), None, gpu),
        shape=AttentionShape(base.num_heads, base.num_kv_heads, base.head_dim),
        cos=angles.cos().to(dtype),
        sin=angles.sin().to(dtype),
        ops=gpu,
    )
    wrap_layers(decoder, gpu)
    return decoder


class DecodeStep:
    """`batch` sequences at `context` tokens, each with one token to compute."""

    def __init__(
        self, pool: Pool, batch: int, context: int, adapters: Sequence[PagedAdapter]
    ) -> None:
        self._cache = pool.cache
        spans = pool.spans([(1, context)] * batch)
        last = context - 1
        slots = [
            span.block_table[last // pool.block_size] * pool.block_size + last % pool.block_size
            for span in spans
        ]
        ids = torch.randint(pool.base.vocab_size, (batch,), device=pool.device)
        segments = _shared_out(adapters, batch)
        self._batch = ForwardBatch(
            input_ids=ids,
            positions=torch.full((batch,), last, device=pool.device),
            slot_mapping=torch.tensor(slots, device=pool.device),
            attention_plan=gpu.plan_attention(spans, pool.block_size),
            lora=gpu.plan_lora(segments) if segments else None,
            logits_rows=torch.arange(batch, device=pool.device),
            sampling=(),
            draws=(),
        )

    @torch.inference_mode()
    def run(self, decoder: Decoder) -> Tensor:
        return torch.argmax(decoder.forward(self._batch, self._cache), dim=-1)


def _shared_out(adapters: Sequence[PagedAdapter], batch: int) -> list[LoraSegment]:
    """Equal runs of rows, the first ones longer where they cannot be equal."""
    if not adapters:
        return []
    bounds = [index * batch // len(adapters) for index in range(len(adapters) + 1)]
    return [
        LoraSegment(start, end, adapter)
        for start, end, adapter in zip(bounds[:-1], bounds[1:], adapters, strict=True)
    ]
