"""The ops a model is made of: one line of semantics each, shapes and dtypes. No code.

A *backend* is a module with these functions: `kernels.reference` (loops in float32: the
specification), `kernels.cpu` (fast), `kernels.cpu.invariant` (fixed tiles: a row's bits do not
depend on its neighbours). It is chosen once, when the model runner is built.

Letters: T tokens in the batch, H hidden size, Hq query heads, Hkv key/value heads, G = Hq / Hkv,
D head size, P pages, S tokens in a block (`block_size`), V vocabulary, N sequences.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from torch import Tensor


@dataclass(frozen=True, slots=True)
class SequenceSpan:
    """One sequence's part of a step: rows `[query_start, query_start + num_tokens)` of the batch.

    Its tokens stand at positions `[context_len - num_tokens, context_len)`; the K and V of
    positions `[0, context_len)` are in the blocks of `block_table`, in order.
    """

    query_start: int
    num_tokens: int
    context_len: int
    block_table: Sequence[int]


@dataclass(frozen=True, slots=True)
class LoraPart:
    """The expand side of one projection of a site: `y[:, out] += h[:, rank] @ b.T`.

    `b`: [out_features, rank] float32, the scale folded in; a view whose memory is rank by rank.
    `rank` and `out` are half-open ranges.
    """

    b: Tensor
    rank: tuple[int, int]
    out: tuple[int, int]


@dataclass(frozen=True, slots=True)
class LoraSite:
    """One adapter at one site (q|k|v fused, o, gate|up fused, down) of one layer.

    `a`: [sum of the parts' ranks, in_features] float32.
    """

    a: Tensor
    parts: tuple[LoraPart, ...]


SiteKey = tuple[int, str]
"""(layer, site name)."""


class LoraSites(Protocol):
    """An adapter as the CPU backends read it. Sites that it leaves alone are absent."""

    @property
    def sites(self) -> Mapping[SiteKey, LoraSite]: ...


@dataclass(frozen=True, slots=True)
class LoraSegment:
    """Rows `[start, end)` of a batch sorted by adapter, and that adapter's weights.

    `weights`: in the form that the backend reads; `LoraSites` on a CPU.
    """

    start: int
    end: int
    weights: Any


class KernelBackend(Protocol):
    """What every backend offers. A packed weight or an attention plan is opaque to callers."""

    def pack_linear(self, weight: Tensor) -> Any:
        """weight [N, K] -> the form `linear` reads fastest."""

    def linear(self, x: Tensor, weight: Any, bias: Tensor | None) -> Tensor:
        """x [T, K], packed [N, K], bias [N] -> x @ weight.T + bias: [T, N], in x's dtype."""

    def rms_norm(self, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        """x [T, H] -> weight * x / sqrt(mean(x^2) + eps), the mean in float32."""

    def silu_and_mul(self, gate_up: Tensor) -> Tensor:
        """gate_up [T, 2I] -> silu(gate_up[:, :I]) * gate_up[:, I:]: [T, I]."""

    def rope_and_store_kv(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        cos: Tensor,
        sin: Tensor,
        key_cache: Tensor,
        value_cache: Tensor,
        slot_mapping: Tensor,
    ) -> Tensor:
        """Rotate query and key (half-split form); write key and value; return the rotated query.

        query [T, Hq, D], key/value [T, Hkv, D], cos/sin [T, D]; caches [Hkv, P, S, D];
        slot_mapping [T] int64: page * S + offset, one slot a token.
        """

    def plan_attention(self, spans: Sequence[SequenceSpan], block_size: int) -> Any:
        """The index tensors that `paged_attention` needs; made once a step, used by all layers."""

    def paged_attention(
        self, query: Tensor, key_cache: Tensor, value_cache: Tensor, plan: Any, scale: float
    ) -> Tensor:
        """out[t] = softmax(scale * q[t] @ K[0..pos(t)].T) @ V[0..pos(t)], softmax in float32.

        query [T, Hq, D]; caches [Hkv, P, S, D]; query head h reads kv head h // G -> [T, Hq, D].
        What a recycled page holds beyond a sequence's context never reaches the result.
        """

    def plan_lora(self, segments: Sequence[LoraSegment]) -> Any:
        """What `add_lora` needs to know of a batch; made once a step, used by all layers.

        Segments are disjoint and in row order.
        """

    def add_lora(self, y: Tensor, x: Tensor, plan: Any, key: SiteKey) -> None:
        """y[s:e, out] += (x[s:e] @ a.T)[:, rank] @ b.T for each segment and part, in float32.

        x [T, K], y [T, N], changed in place; a, b: the segment's weights at site `key`. Rows
        outside every segment, or whose adapter leaves the site alone, keep their bits.
        """

    def sample(
        self, logits: Tensor, temperature: Tensor, top_k: Tensor, top_p: Tensor, uniform: Tensor
    ) -> Tensor:
        """logits [N, V]; temperature, top_p, uniform [N] float64; top_k [N] int64 -> ids [N].

        temperature 0: argmax. Else the most likely tokens that top_k (0: all) and then top_p
        allow, tokens tied with the last of them included, drawn by inverse CDF at `uniform` in
        [0, 1), in the order of token ids.
        """
