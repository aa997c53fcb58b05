"""Random adapters for a base: weights of any ranks and forms, made without files."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from kernels.adapter_table import SiteKey, SiteShape
from kernels.interface import LoraPart, LoraSite, ReplacedRows
from lora.base_spec import BaseSpec
from lora.weights import LoraWeights


def base_spec(
    *,
    hidden_size: int = 48,
    intermediate_size: int = 80,
    num_layers: int = 2,
    num_heads: int = 3,
    num_kv_heads: int = 1,
    head_dim: int = 16,
    vocab_size: int = 300,
) -> BaseSpec:
    """Shapes alone; the defaults are no multiples of a kernel's block."""
    return BaseSpec(
        model_id="shapes",
        known_names=frozenset(),
        architecture="LlamaForCausalLM",
        hidden_size=hidden_size,
        intermediate_size=intermediate_size,
        num_layers=num_layers,
        num_heads=num_heads,
        num_kv_heads=num_kv_heads,
        head_dim=head_dim,
        vocab_size=vocab_size,
        max_model_len=512,
        tie_word_embeddings=False,
        attention_bias=False,
        mlp_bias=False,
        eos_token_ids=(),
        fingerprint="shapes",
    )


def llama_3_8b() -> BaseSpec:
    return base_spec(
        hidden_size=4096,
        intermediate_size=14336,
        num_layers=32,
        num_heads=32,
        num_kv_heads=8,
        head_dim=128,
        vocab_size=128256,
    )


def random_site(
    shape: SiteShape,
    ranks: tuple[int, ...],
    generator: torch.Generator,
    *,
    scale: bool = False,
    bias: bool = False,
    replaced: ReplacedRows | None = None,
) -> LoraSite:
    """Parts of rank 0 are absent. Values are such that the outputs are of size 1."""
    parts, rank_begin, out_begin = [], 0, 0
    for rank, width in zip(ranks, shape.widths, strict=True):
        if rank:
            b = torch.randn(rank, width, generator=generator).div_(rank**0.5).t()
            rank_end, out_end = rank_begin + rank, out_begin + width
            parts.append(LoraPart(b, (rank_begin, rank_end), (out_begin, out_end)))
        rank_begin += rank
        out_begin += width
    a = torch.randn(rank_begin, shape.num_in, generator=generator).div_(shape.num_in**0.5)
    return LoraSite(
        a,
        tuple(parts),
        scale=torch.rand(out_begin, generator=generator) + 0.5 if scale else None,
        bias=torch.randn(out_begin, generator=generator) if bias else None,
        replaced=replaced,
    )


def random_rows(
    count: int,
    length: int,
    generator: torch.Generator,
    *,
    among: int | None = None,
    bias: bool = False,
) -> ReplacedRows:
    """`count` rows [length], for ids drawn from range(among), or for 0, 1, ... in order."""
    ids: Tensor | None = None
    if among is not None:
        ids = torch.randperm(among, generator=generator)[:count].sort().values
    return ReplacedRows(
        torch.randn(count, length, generator=generator) / length**0.5,
        ids,
        torch.randn(count, generator=generator) if bias else None,
    )


def weights_of(sites: Mapping[SiteKey, LoraSite]) -> LoraWeights:
    num_bytes = sum(
        site.a.nbytes + sum(part.b.nbytes for part in site.parts) for site in sites.values()
    )
    return LoraWeights(sites, num_bytes=num_bytes)
