"""Goals K1 to K5: paged attention alone, at Llama-3-8B's shapes, against copy bandwidth.

Knows nothing of LoRA. The bytes are K and V once; a call's KV is of another layer than the call's
before, so that no cache holds it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch

from bench.gpu_inputs import pool_for, random_tensor
from bench.gpu_records import GOALS
from bench.gpu_timing import Timer
from bench.gpu_worker import Bench
from bench.roofline import BLOCK_SIZE, H200, kv_bytes_per_token
from bench.shapes import LLAMA_3_8B, TOY
from kernels import gpu
from kernels.gpu.launch import round_up

NUM_LAYERS = 2
"""In the pool of this section: enough that a large case's KV is never the one just read."""
CASES: tuple[tuple[str, str, list[tuple[int, int]]], ...] = (
    ("K1", "64 x 8k", [(1, 8192)] * 64),
    ("K2a", "64 x 1k", [(1, 1024)] * 64),
    ("K2b", "1 x 32k", [(1, 32768)]),
    ("K3", "63 x 1k + 1 x 32k", [(1, 1024)] * 63 + [(1, 32768)]),
    ("K5", "1 x 1k", [(1, 1024)]),
)
PREFILLS: tuple[tuple[str, list[tuple[int, int]]], ...] = (
    ("prefill 4 x 2k", [(2048, 2048)] * 4),
    ("chunk of 512 at 8k beside 63 decodes at 1k", [(512, 8192)] + [(1, 1024)] * 63),
)
# Layers that a graph reads in turn where one layer's KV would stay in the L2 cache.
SMALL_CASE_LAYERS = 32


def run(bench: Bench) -> None:
    timer = Timer(dry=bench.dry)
    for key, what, work in CASES:
        small = key in ("K2b", "K5")
        us, layer_bytes = _time(bench, timer, work, SMALL_CASE_LAYERS if small else NUM_LAYERS)
        floor_us = layer_bytes / float(bench.facts["copy"]) * 1e6
        share = None if us is None else floor_us / us
        bench.report(
            f"decode {what}, a layer",
            "us",
            us,
            predicted=None if bench.dry else _predicted_us(key, layer_bytes),
            floor_share=share,
            note="" if bench.dry else f"{layer_bytes / 1e9:.3f} GB",
        )
        bench.tell_fact(f"attention {what}, us", us)
        bench.report_goal(key, us if key == "K5" else share)
    for what, work in PREFILLS:
        _prefill(bench, timer, what, work)


def _predicted_us(key: str, layer_bytes: int) -> float:
    """The goal's predicted share, as a time at the bandwidth that was known beforehand."""
    predicted = next(goal.predicted for goal in GOALS if goal.key == key)
    assert predicted is not None
    return predicted if key == "K5" else layer_bytes / H200.copy / predicted * 1e6


def _time(
    bench: Bench, timer: Timer, work: Sequence[tuple[int, int]], num_layers: int
) -> tuple[float | None, int]:
    """Median microseconds of a layer, and the bytes of K and V that it reads."""
    base = replace(TOY if bench.dry else LLAMA_3_8B, num_layers=2 if bench.dry else num_layers)
    if bench.dry:
        work = [(min(tokens, 4), min(context, 100)) for tokens, context in work[-2:]]
    num_tokens = sum(round_up(context, BLOCK_SIZE) for _, context in work)
    pool = pool_for(base, num_tokens, [], dry=bench.dry)
    pool.fill()
    spans = pool.spans(work)
    plan = gpu.plan_attention(spans, BLOCK_SIZE)
    num_rows = sum(tokens for tokens, _ in work)
    query = random_tensor((num_rows, base.num_heads, base.head_dim), pool.dtype, pool.device)

    def attend(index: int) -> torch.Tensor:
        key_cache, value_cache = pool.cache.layer(index % base.num_layers)
        return gpu.paged_attention(query, key_cache, value_cache, plan, base.head_dim**-0.5)

    us = timer.us(attend, calls=base.num_layers)
    contexts = sum(context for _, context in work)
    return us, contexts * kv_bytes_per_token(base) // base.num_layers


def _prefill(bench: Bench, timer: Timer, what: str, work: Sequence[tuple[int, int]]) -> None:
    us, _ = _time(bench, timer, work, NUM_LAYERS)
    base = LLAMA_3_8B
    # Each query meets the positions up to its own: 2 products of 2 flops a head and dimension.
    pairs = sum(tokens * context - tokens * (tokens - 1) / 2 for tokens, context in work)
    flops = 4 * base.num_heads * base.head_dim * pairs
    floor_us = flops / float(bench.facts["matmul"]) * 1e6
    bench.report(
        f"{what}, a layer",
        "us",
        us,
        floor_share=None if us is None else floor_us / us,
        note="" if bench.dry else f"{flops / 1e9:.0f} Gflop",
    )
