"""The decoder that every Llama-family base is: plain objects over packed weights.

Knows nothing of LoRA (its parts can be wrapped), of requests, or of how pages are shared.
`forward` takes a batch of tokens of many sequences and returns logits for the rows that sample.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from engine.forward_batch import ForwardBatch
from engine.kv_cache import KVCache
from kernels.interface import KernelBackend
from lora.layer import Embedding, Linear, Norm


class PackedLinear:
    """A linear layer of the base: no batch changes what it computes."""

    def __init__(self, weight: Tensor, bias: Tensor | None, ops: KernelBackend) -> None:
        self._weight = ops.pack_linear(weight)
        self.bias = bias
        self._ops = ops

    def __call__(self, x: Tensor, batch: Any) -> Tensor:
        return self._ops.linear(x, self._weight, self.bias)


class RmsNorm:
    """A norm of the base, `weight` [H]."""

    def __init__(self, weight: Tensor, eps: float, ops: KernelBackend) -> None:
        self._weight = weight
        self._eps = eps
        self._ops = ops

    def __call__(self, x: Tensor, batch: Any) -> Tensor:
        return self._ops.rms_norm(x, self._weight, self._eps)

    def add(self, x: Tensor, residual: Tensor, batch: Any) -> Tensor:
        return self._ops.add_rms_norm(x, residual, self._weight, self._eps)


class TokenEmbedding:
    """The base's embedding, `weight` [V, H]."""

    def __init__(self, weight: Tensor) -> None:
        self._weight = weight

    def __call__(self, input_ids: Tensor, batch: Any) -> Tensor:
        return self._weight.index_select(0, input_ids)


@dataclass(slots=True)
class DecoderLayer:
    """One layer's norms and its four linear sites; all may be replaced by wrappers."""

    input_norm: Norm
    qkv_proj: Linear
    o_proj: Linear
    post_attention_norm: Norm
    gate_up_proj: Linear
    down_proj: Linear


@dataclass(frozen=True, slots=True)
class AttentionShape:
    num_heads: int
    num_kv_heads: int
    head_dim: int


class Decoder:
    """embed -> layers -> norm -> lm_head, over paged K and V; its parts may be replaced."""

    def __init__(
        self,
        *,
        embedding: Embedding,
        layers: list[DecoderLayer],
        norm: Norm,
        lm_head: Linear,
        shape: AttentionShape,
        cos: Tensor,
        sin: Tensor,
        ops: KernelBackend,
    ) -> None:
        self.layers = layers
        self.embedding = embedding
        self.norm = norm
        self.lm_head = lm_head
        self._shape = shape
        self._cos = cos
        self._sin = sin
        self._ops = ops

    def forward(self, batch: ForwardBatch, kv_cache: KVCache) -> Tensor:
        """Logits [M, V] in float32 for `batch.logits_rows`; writes K and V of all T tokens."""
        hidden = self.embedding(batch.input_ids, batch)
        cos, sin = self._cos[batch.positions], self._sin[batch.positions]
        normed = self.layers[0].input_norm(hidden, batch)
        for index, layer in enumerate(self.layers):
            update = self._attention(index, layer, normed, cos, sin, batch, kv_cache)
            normed = layer.post_attention_norm.add(update, hidden, batch)
            gate_up = layer.gate_up_proj(normed, batch)
            update = layer.down_proj(self._ops.silu_and_mul(gate_up), batch)
            if index + 1 < len(self.layers):
                normed = self.layers[index + 1].input_norm.add(update, hidden, batch)
        update = update.index_select(0, batch.logits_rows)
        hidden = hidden.index_select(0, batch.logits_rows)
        return self.lm_head(self.norm.add(update, hidden, batch), batch).float()

    def _attention(
        self,
        index: int,
        layer: DecoderLayer,
        x: Tensor,
        cos: Tensor,
        sin: Tensor,
        batch: ForwardBatch,
        kv_cache: KVCache,
    ) -> Tensor:
        shape = self._shape
        num_kv = shape.num_kv_heads
        heads = layer.qkv_proj(x, batch).view(x.shape[0], -1, shape.head_dim)
        query, key, value = torch.split(heads, [shape.num_heads, num_kv, num_kv], dim=1)
        key_cache, value_cache = kv_cache.layer(index)
        query = self._ops.rope_and_store_kv(
            query, key, value, cos, sin, key_cache, value_cache, batch.slot_mapping
        )
        attended = self._ops.paged_attention(
            query, key_cache, value_cache, batch.attention_plan, shape.head_dim**-0.5
        )
        return layer.o_proj(attended.flatten(1), batch)
