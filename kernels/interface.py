"""The ops a model is made of: one line of semantics each, shapes and dtypes. No code.

A *backend* is a module with these functions: `kernels.reference` (loops in float32: the
specification), `kernels.cpu` and `kernels.gpu` (fast), `kernels.cpu.invariant` and
`kernels.gpu.invariant` (fixed tiles: a row's bits do not depend on its neighbours). It is chosen
once, when the model runner is built.

Letters: T tokens in the batch, H hidden size, Hq query heads, Hkv key/value heads, G = Hq / Hkv,
D head size, P pages, S tokens in a block (`block_size`), V vocabulary, N sequences.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import msgspec
from torch import Tensor


class SequenceSpan(msgspec.Struct, frozen=True, gc=False):
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
class ReplacedRows:
    """Rows of a weight that an adapter has in place of the base's.

    `rows` [M, in_features] float32 stand for the output features (at the embedding: the token
    ids) `ids` [M] int64, ascending; None: for 0, 1, ..., M - 1. `bias`: [M] float32.
    """

    rows: Tensor
    ids: Tensor | None = None
    bias: Tensor | None = None


@dataclass(frozen=True, slots=True)
class LoraSite:
    """One adapter at one site (q|k|v fused, o, gate|up fused, down) of one layer.

    `a`: [sum of the parts' ranks, in_features] float32. The embedding is the site
    (-1, "embed_tokens") whose input is a one-hot row: `a` [rank, vocab_size], one part of width
    hidden_size; the language model head is (-1, "lm_head"). `scale` and `bias`: [out_features]
    float32, what `scale_output` and `add_row_bias` apply.
    """

    a: Tensor
    parts: tuple[LoraPart, ...]
    scale: Tensor | None = None
    bias: Tensor | None = None
    replaced: ReplacedRows | None = None


SiteKey = tuple[int, str]
"""(layer, site name)."""


class LoraSites(Protocol):
    """An adapter as the CPU backends read it. Sites that it leaves alone are absent."""

    @property
    def sites(self) -> Mapping[SiteKey, LoraSite]: ...


class LoraSegment(msgspec.Struct, frozen=True):
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

    def add_rms_norm(self, x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> Tensor:
        """residual += x in place, in residual's dtype; return rms_norm(residual, weight, eps).

        x, residual [T, H] of one dtype -> [T, H].
        """

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
        self,
        query: Tensor,
        key_cache: Tensor,
        value_cache: Tensor,
        plan: Any,
        scale: float,
        *,
        window: int = 0,
        soft_cap: float = 0.0,
    ) -> Tensor:
        """out[t] = softmax(s) @ V[0..pos(t)], s = scale * q[t] @ K[0..pos(t)].T, in float32.

        query [T, Hq, D]; caches [Hkv, P, S, D]; query head h reads kv head h // G -> [T, Hq, D].
        soft_cap c > 0: s = c * tanh(s / c) (Gemma 2). window w > 0: position p sees (p - w, p]
        alone (Longformer, Beltagy et al. 2020). What a recycled page holds where none of a span's
        tokens may look never reaches the result.
        """

    def gather_pages(self, pool: Tensor, pages: Tensor) -> Tensor:
        """pool[pages]: pool [P, ...] of any dtype, pages [n] int64 -> [n, ...]. For swapping."""

    def scatter_pages(self, pool: Tensor, pages: Tensor, content: Tensor) -> None:
        """pool[pages] = content [n, ...]: whole pages, which are distinct."""

    def plan_lora(self, segments: Sequence[LoraSegment]) -> Any:
        """What `add_lora` needs to know of a batch; made once a step, used by all layers.

        Segments are disjoint and in row order.
        """

    def add_lora(self, y: Tensor, x: Tensor, plan: Any, key: SiteKey) -> None:
        """y[s:e, out] += (x[s:e] @ a.T)[:, rank] @ b.T for each segment and part, in float32.

        x [T, K], y [T, N], changed in place; a, b: the segment's weights at site `key`. Rows
        outside every segment, or whose adapter leaves the site alone, keep their bits.
        """

    # Forms beside LoRA, by the plan of `plan_lora`. Each changes, in place, only rows of segments
    # whose adapter has the form at site `key`; all other rows keep their bits.

    def scale_output(self, y: Tensor, bias: Tensor | None, plan: Any, key: SiteKey) -> None:
        """y[s:e] = (y[s:e] - bias) * scale + bias, in float32: DoRA's m / ||W + BA||.

        y [T, N], the base's bias [N] or None (it is not scaled). Source: DoRA (Liu et al. 2024).
        """

    def add_row_bias(self, y: Tensor, plan: Any, key: SiteKey) -> None:
        """y[s:e] += bias, in float32. y [T, N]."""

    def replace_embedding_rows(
        self, hidden: Tensor, input_ids: Tensor, plan: Any, key: SiteKey
    ) -> None:
        """hidden[t] = rows[i] for s <= t < e where input_ids[t] == ids[i].

        hidden [T, H], input_ids [T] int64; rows, ids: the adapter's `replaced`.
        """

    def add_embedding_lora(
        self, hidden: Tensor, input_ids: Tensor, plan: Any, key: SiteKey
    ) -> None:
        """hidden[t] += B @ A[:, input_ids[t]] for s <= t < e, in float32. hidden [T, H]."""

    def override_linear(self, y: Tensor, x: Tensor, plan: Any, key: SiteKey) -> None:
        """y[s:e, ids] = x[s:e] @ rows.T + row bias, in float32. x [T, K], y [T, N]."""

    def apply_penalties(
        self,
        logits: Tensor,
        output_counts: Tensor,
        seen: Tensor,
        repetition: Tensor,
        frequency: Tensor,
        presence: Tensor,
    ) -> None:
        """Lower the logits of tokens that were used, in place.

        logits [N, V] float32; output_counts [N, V] int32: how often each token was generated;
        seen [N, V] bool: in the prompt or the output; the others [N] float32. Where seen, a
        logit above 0 is divided by `repetition` (1: off), any other multiplied (CTRL, Keskar et
        al. 2019); then all lose frequency * count + presence * (count > 0), as OpenAI's API has it.
        """

    def sample(
        self,
        logits: Tensor,
        temperature: Tensor,
        top_k: Tensor,
        top_p: Tensor,
        min_p: Tensor,
        uniform: Tensor,
    ) -> Tensor:
        """logits [N, V] float32; top_k [N] int64; the others [N] float64 -> ids [N] int64.

        temperature 0: argmax, the lower id where two are equal. Else p = softmax(logits /
        temperature), and what remains of it is drawn by inverse CDF at `uniform` in [0, 1), in
        the order of token ids. In this order: min_p (0: off) keeps p >= min_p * max(p) (Nguyen
        et al. 2024); top_k (0: off) the most likely; top_p (1: off) the most likely that together
        reach top_p of what is left (Holtzman et al. 2020). Tokens tied with the last one kept
        are kept.
        """

    def log_probs(
        self, logits: Tensor, token_ids: Tensor, num_top: int
    ) -> tuple[Tensor, Tensor, Tensor]:
        """log_softmax of logits [N, V], in float32, at token_ids [N] and at the num_top likeliest.

        -> chosen [N], top_ids [N, num_top] int64, top [N, num_top]: most likely first, the lower
        id where two logits are equal. num_top <= V.
        """
