"""What others do on this GPU with the same shapes: torch's SDPA and flex_attention, and PEFT.

vLLM, SGLang and FlashInfer are not to be had on such a machine. SDPA and flex_attention read
contiguous K and V, which no server has; PEFT takes several adapters in one batch by
`adapter_names`, without graphs, because it indexes rows from the host.
"""

from __future__ import annotations

from typing import Any

import torch
from peft import LoraConfig, get_peft_model
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.attention.flex_attention import flex_attention

from bench.gpu_inputs import random_tensor
from bench.gpu_lora import LORA_MS
from bench.gpu_timing import Timer, compute_device, compute_dtype
from bench.gpu_worker import Bench
from bench.roofline import kv_bytes_per_token
from bench.shapes import LLAMA_3_8B, TOY
from lora.base_spec import BaseSpec

CASES = (("64 x 1k", 64, 1024), ("1 x 32k", 1, 32768), ("64 x 8k", 64, 8192))
NUM_ADAPTERS = 64
RANK = 16
SMALL_CASE_COPIES = 4
"""Sets of K and V that a graph reads in turn where one would partly stay in the L2 cache."""


def run(bench: Bench) -> None:
    _peft(bench)
    flex: Any = flex_attention if bench.dry else torch.compile(flex_attention)
    for what, batch, context in CASES:
        for name, attend in (("SDPA", _sdpa), ("flex_attention", flex)):
            _attention(bench, f"{name} {what}", batch, context, attend)


def _sdpa(query: Tensor, key: Tensor, value: Tensor, **options: Any) -> Tensor:
    return functional.scaled_dot_product_attention(query, key, value, **options)


def _attention(bench: Bench, what: str, batch: int, context: int, attend: Any) -> None:
    base = TOY if bench.dry else LLAMA_3_8B
    if bench.dry:
        batch, context = 2, 40
    dtype, device = compute_dtype(dry=bench.dry), compute_device(dry=bench.dry)
    shape = (batch, base.num_kv_heads, context, base.head_dim)
    copies = 1 if batch * context > 2**18 else SMALL_CASE_COPIES
    caches = [[random_tensor(shape, dtype, device) for _ in "kv"] for _ in range(copies)]
    query = random_tensor((batch, base.num_heads, 1, base.head_dim), dtype, device)

    def call(index: int) -> Tensor:
        result: Tensor = attend(query, *caches[index], enable_gqa=True)
        return result

    us = Timer(dry=bench.dry).us(call, calls=copies)
    num_bytes = batch * context * kv_bytes_per_token(base) / base.num_layers
    floor_us = num_bytes / bench.facts["copy"] * 1e6
    ours = bench.facts.get(f"attention {what.split(maxsplit=1)[1]}, us")
    note = f"Tenfold: {ours:.1f} us, {us / ours:.2f} x as fast" if us and ours else ""
    share = None if us is None else floor_us / us
    bench.report(f"{what}, a layer", "us", us, floor_share=share, note=note)


class LayerLinears(nn.Module):
    """The seven linears of one decoder layer, in the order and shapes of a layer's data."""

    def __init__(self, base: BaseSpec, dtype: torch.dtype, device: torch.device) -> None:
        super().__init__()
        for name, (num_in, num_out) in base.linear_modules().items():
            linear = nn.Linear(num_in, num_out, bias=False, dtype=dtype, device=device)
            self.add_module(name.rsplit(".", 1)[-1], linear)

    def forward(self, x: Tensor) -> Any:
        of: Any = self
        query, _, _ = of.q_proj(x), of.k_proj(x), of.v_proj(x)
        hidden = of.o_proj(query)
        return of.down_proj(of.gate_proj(hidden) * of.up_proj(hidden))


@torch.inference_mode()
def _peft(bench: Bench) -> None:
    """LoRA's part is the layer with adapters less the layer without, times the base's layers."""
    base = TOY if bench.dry else LLAMA_3_8B
    num_adapters = 3 if bench.dry else NUM_ADAPTERS
    dtype, device = compute_dtype(dry=bench.dry), compute_device(dry=bench.dry)
    layer = LayerLinears(base, dtype, device).eval()
    x = random_tensor((num_adapters, 1, base.hidden_size), dtype, device)
    timer = Timer(dry=bench.dry)
    alone_us = timer.eager_us(lambda: layer(x))
    targets = [name.rsplit(".", 1)[-1] for name in base.linear_modules()]
    config = LoraConfig(r=RANK, target_modules=targets, init_lora_weights="gaussian")
    names = [f"adapter-{index}" for index in range(num_adapters)]
    model: Any = get_peft_model(layer, config, adapter_name=names[0])
    for name in names[1:]:
        model.add_adapter(name, config)
    model = model.to(dtype).eval()
    mixed_us = timer.eager_us(lambda: model(x, adapter_names=names))
    peft_ms = None
    if mixed_us is not None and alone_us is not None:
        peft_ms = (mixed_us - alone_us) * base.num_layers / 1e3
    what = f"PEFT adapter_names, {num_adapters} of rank {RANK}, LoRA's part of a step"
    bench.report(what, "ms", peft_ms, note="one layer, times 32; no graph")
    ours = bench.facts.get(LORA_MS)
    bench.report_goal("K14", peft_ms / ours if peft_ms and ours else None)
