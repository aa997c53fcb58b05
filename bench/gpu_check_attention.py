"""Correctness: paged attention, the rotary embedding with its KV write, pages copied for a swap.

Pages that no sequence owns, and what lies in pages behind a context, hold NaN.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial

import msgspec
import torch

from bench import float64
from bench.gpu_checks import NAMES, Checker, dtypes
from bench.gpu_inputs import Pool, random_tensor
from bench.gpu_timing import compute_device
from bench.gpu_worker import Bench
from bench.roofline import BLOCK_SIZE
from bench.shapes import LLAMA_3_8B, SMOLLM2_135M, TOY
from kernels import gpu
from kernels.interface import SequenceSpan
from lora.base_spec import BaseSpec

SPARE_PAGES = 3
WORK = [(1, 1), (1, 15), (1, 16), (1, 1000), (1, 9000), (70, 70), (33, 700), (5, 64), (300, 2000)]
DRY_WORK = [(1, 1), (1, 16), (1, 150), (5, 20), (3, 90)]


@dataclass(frozen=True, slots=True)
class Variant:
    """`window` in positions; `soft_cap` in units of a score; 0: none."""

    name: str
    window: int = 0
    soft_cap: float = 0.0


VARIANTS = (Variant("plain"), Variant("window", window=37), Variant("soft cap", soft_cap=5.0))


def run(bench: Bench) -> None:
    checker = Checker(bench)
    bases = [TOY] if bench.dry else [LLAMA_3_8B, SMOLLM2_135M]
    for base in (replace(base, num_layers=2) for base in bases):
        for dtype in dtypes(dry=bench.dry):
            for variant in VARIANTS:
                what = f"attention {variant.name}, {base.num_heads}/{base.num_kv_heads} heads"
                check = partial(_attention, checker, what, base, dtype, variant, dry=bench.dry)
                checker.attempt(what, check)
            what = f"rotary and KV write, {base.num_heads}/{base.num_kv_heads} heads"
            checker.attempt(what, partial(_rotary, checker, what, base, dtype, dry=bench.dry))
    checker.attempt("pages copied", partial(_pages, checker, bases[0], dry=bench.dry))


def _attention(
    checker: Checker, what: str, base: BaseSpec, dtype: torch.dtype, variant: Variant, *, dry: bool
) -> None:
    work = DRY_WORK if dry else WORK
    pool, spans = _pool_with(base, work, dtype, dry=dry)
    key_cache, value_cache = pool.cache.layer(1)
    query = random_tensor((_num_rows(work), base.num_heads, base.head_dim), dtype, pool.device)
    scale = base.head_dim**-0.5
    plan = gpu.plan_attention(spans, BLOCK_SIZE)
    window, soft_cap = variant.window, variant.soft_cap

    def attend() -> torch.Tensor:
        return gpu.paged_attention(
            query, key_cache, value_cache, plan, scale, window=window, soft_cap=soft_cap
        )

    got, again = attend(), attend()
    want = float64.attention(query, key_cache, value_cache, spans, scale, window, soft_cap)
    checker.close(what, got, want)
    checker.equal(f"{what}, {NAMES[dtype]}, run to run", again, got)


def _rotary(checker: Checker, what: str, base: BaseSpec, dtype: torch.dtype, *, dry: bool) -> None:
    work = DRY_WORK if dry else WORK
    pool, spans = _pool_with(base, work, dtype, dry=dry)
    key_cache, value_cache = pool.cache.layer(1)
    heads = base.num_heads + 2 * base.num_kv_heads
    qkv = random_tensor((_num_rows(work), heads, base.head_dim), dtype, pool.device)
    sizes = [base.num_heads, base.num_kv_heads, base.num_kv_heads]
    query, key, value = torch.split(qkv, sizes, dim=1)
    slots = _slots(spans).to(pool.device)
    angles = torch.rand(slots.shape[0], base.head_dim // 2, device=pool.device) * 6
    angles = torch.cat([angles, angles], dim=-1)
    cos, sin = angles.cos().to(dtype), angles.sin().to(dtype)
    want_query, want_key = (float64.rotate(each, cos, sin) for each in (query, key))
    got = gpu.rope_and_store_kv(query, key, value, cos, sin, key_cache, value_cache, slots)
    checker.close(f"{what}: query", got, want_query)
    pages, offsets = slots // BLOCK_SIZE, slots % BLOCK_SIZE
    stored_key = key_cache[:, pages, offsets].transpose(0, 1)
    checker.close(f"{what}: key", stored_key, want_key)
    stored_value = value_cache[:, pages, offsets].transpose(0, 1)
    checker.equal(f"{what}, {NAMES[dtype]}: value", stored_value, value)


def _pages(checker: Checker, base: BaseSpec, *, dry: bool) -> None:
    dtype, device = torch.float32, compute_device(dry=dry)
    pool = Pool(base, 6, block_size=BLOCK_SIZE, dtype=dtype, device=device)
    pool.fill()
    pages = pool.cache.pages
    chosen, others = torch.tensor([4, 0, 3], device=device), torch.tensor([1, 5, 2], device=device)
    before = pages.clone()
    content = gpu.gather_pages(pages, chosen)
    checker.equal("gather_pages", content, before[chosen])
    gpu.scatter_pages(pages, others, content)
    before[others] = before[chosen]
    checker.equal("scatter_pages", pages, before)


def _pool_with(
    base: BaseSpec, work: list[tuple[int, int]], dtype: torch.dtype, *, dry: bool
) -> tuple[Pool, list[SequenceSpan]]:
    """A pool of NaN in which only the positions of the spans hold numbers."""
    num_pages = sum(-(-context // BLOCK_SIZE) for _, context in work) + SPARE_PAGES
    pool = Pool(base, num_pages, block_size=BLOCK_SIZE, dtype=dtype, device=compute_device(dry=dry))
    pool.poison()
    spans = pool.spans(work)
    slots = _slots([msgspec.structs.replace(span, num_tokens=span.context_len) for span in spans])
    pages, offsets = (slots // BLOCK_SIZE).to(pool.device), (slots % BLOCK_SIZE).to(pool.device)
    for cache in pool.cache.layer(1):
        shape = (base.num_kv_heads, slots.shape[0], base.head_dim)
        cache[:, pages, offsets] = random_tensor(shape, dtype, pool.device)
    return pool, spans


def _slots(spans: list[SequenceSpan]) -> torch.Tensor:
    """page * S + offset of every token of the step."""
    return torch.tensor(
        [
            span.block_table[position // BLOCK_SIZE] * BLOCK_SIZE + position % BLOCK_SIZE
            for span in spans
            for position in range(span.context_len - span.num_tokens, span.context_len)
        ]
    )


def _num_rows(work: list[tuple[int, int]]) -> int:
    return sum(num_tokens for num_tokens, _ in work)
