"""What this GPU does at best: copying, multiplying, starting kernels. All else is held to it.

Knows no kernel of ours but one that does nothing. Tells the facts `copy` (bytes/s), `matmul`
(flop/s) and `machine`.
"""
# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

import platform

import torch
import triton
import triton.language as tl
from torch import Tensor

from bench.gpu_timing import Timer, compute_device, compute_dtype
from bench.gpu_worker import Bench
from bench.roofline import H200

NODES = 200
TRANSFER_BYTES = 1 << 30


@triton.jit
def _add_one(x_ptr):
    tl.store(x_ptr, tl.load(x_ptr) + 1.0)


def run(bench: Bench) -> None:
    timer = Timer(dry=bench.dry)
    bench.tell_fact("machine", _machine(dry=bench.dry))
    _copy(bench, timer)
    _matmul(bench, timer)
    _graph_node(bench, timer)
    _transfer(bench, timer)


def _machine(*, dry: bool) -> dict[str, str]:
    return {
        "gpu": "none: dry run" if dry else torch.cuda.get_device_name(),
        "cuda": str(torch.version.cuda),
        "torch": torch.__version__,
        "triton": triton.__version__,
        "python": platform.python_version(),
    }


def _copy(bench: Bench, timer: Timer) -> None:
    num_bytes = 1 << 16 if bench.dry else 4 << 30
    source = _random(num_bytes // 2, dry=bench.dry)
    target = torch.empty_like(source)
    us = timer.us(lambda _: target.copy_(source))
    rate = None if us is None else 2 * source.nbytes / us * 1e6
    bench.tell_fact("copy", rate or H200.copy)
    shown = None if rate is None else rate / 1e12
    bench.report("copy, read and written", "TB/s", shown, predicted=H200.copy / 1e12)


def _matmul(bench: Bench, timer: Timer) -> None:
    size = 64 if bench.dry else 8192
    a, b = (_random(size * size, dry=bench.dry).view(size, size) for _ in range(2))
    us = timer.us(lambda _: a @ b)
    rate = None if us is None else 2 * size**3 / us * 1e6
    bench.tell_fact("matmul", rate or H200.matmul)
    shown = None if rate is None else rate / 1e12
    bench.report(f"product {size}^3", "TFLOP/s", shown, predicted=H200.matmul / 1e12)


def _graph_node(bench: Bench, timer: Timer) -> None:
    """What one more dependent kernel costs within a graph: the launch floor of LoRA."""
    x = torch.zeros(1, device=compute_device(dry=bench.dry))

    def chain(_: int) -> None:
        for _ in range(1 if bench.dry else NODES):
            _add_one[(1,)](x)

    us = timer.us(chain)
    bench.report("graph node", "us", None if us is None else us / NODES, predicted=1.2)


def _transfer(bench: Bench, timer: Timer) -> None:
    """Pinned memory to the device: what an adapter or a swapped page travels at."""
    num_bytes = 1 << 16 if bench.dry else TRANSFER_BYTES
    host = torch.zeros(num_bytes, dtype=torch.uint8, pin_memory=not bench.dry)
    target = torch.empty(num_bytes, dtype=torch.uint8, device=compute_device(dry=bench.dry))
    us = timer.eager_us(lambda: target.copy_(host, non_blocking=True))
    shown = None if us is None else num_bytes / us / 1e6
    bench.report("pinned host to device", "TB/s", shown, predicted=0.05)


def _random(count: int, *, dry: bool) -> Tensor:
    """Random and not zeros: on those a product runs faster than on real data."""
    return torch.randn(count, device=compute_device(dry=dry)).to(compute_dtype(dry=dry))
