"""Which page reads faster: one that holds all layers, or one for each layer; of 16 tokens or 64.

Both run the same kernel on the same page ids; only the strides differ.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from torch import Tensor

from bench.gpu_inputs import Pool, pool_for, random_tensor
from bench.gpu_timing import Timer
from bench.gpu_worker import Bench
from bench.roofline import kv_bytes_per_token
from bench.shapes import LLAMA_3_8B, TOY
from kernels import gpu
from kernels.gpu.attention import AttentionPlan
from lora.base_spec import BaseSpec

BLOCK_SIZES = (16, 64)
WORK = (("64 x 1k", [(1, 1024)] * 64), ("1 x 32k", [(1, 32768)]))


def run(bench: Bench) -> None:
    base = TOY if bench.dry else LLAMA_3_8B
    for what, work in WORK:
        work = [(1, 100)] * 2 if bench.dry else work
        for block_size in BLOCK_SIZES:
            _compare(bench, base, what, work, block_size)


def _compare(
    bench: Bench, base: BaseSpec, what: str, work: list[tuple[int, int]], block_size: int
) -> None:
    num_tokens = sum(-(-context // block_size) * block_size for _, context in work)
    pool = pool_for(base, num_tokens, [], dry=bench.dry, block_size=block_size)
    plan = gpu.plan_attention(pool.spans(work), block_size)
    floor_us = num_tokens * kv_bytes_per_token(base) / base.num_layers / bench.facts["copy"] * 1e6
    query = random_tensor((len(work), base.num_heads, base.head_dim), pool.dtype, pool.device)
    one_layer = replace(base, num_layers=1)
    per_layer = [
        pool_for(one_layer, num_tokens, [], dry=bench.dry, block_size=block_size)
        for _ in range(base.num_layers)
    ]
    forms: dict[str, list[tuple[Tensor, Tensor]]] = {
        "all-layer page": [pool.cache.layer(index) for index in range(base.num_layers)],
        "page per layer": [each.cache.layer(0) for each in per_layer],
    }
    _fill([pool, *per_layer])
    for name, caches in forms.items():
        us = Timer(dry=bench.dry).us(
            partial(_attend, query, caches, plan, base.head_dim**-0.5), calls=base.num_layers
        )
        share = None if us is None else floor_us / us
        bench.report(f"{what}, {name} of {block_size}, a layer", "us", us, floor_share=share)


def _attend(
    query: Tensor,
    caches: list[tuple[Tensor, Tensor]],
    plan: AttentionPlan,
    scale: float,
    index: int,
) -> Tensor:
    key_cache, value_cache = caches[index]
    return gpu.paged_attention(query, key_cache, value_cache, plan, scale)


def _fill(pools: list[Pool]) -> None:
    for pool in pools:
        pool.fill()
