"""The whole engine: the same requests through the GPU backend and the CPU's, token by token.

SmolLM2's shape with seeded random weights and the demo's two adapters beside the base, in one
batch, greedily, both in float32; then the GPU alone in bfloat16. A dry run takes a toy base and
two random adapters, and interprets the GPU backend.
"""

from __future__ import annotations

import tempfile
from dataclasses import replace
from pathlib import Path

from bench.gpu_worker import Bench
from bench.random_base import write_adapter, write_base
from bench.shapes import SMOLLM2_135M, TARGET_SETS, TOY
from bench.tenfold_in_process import CPU, tenfold
from bench.workload import Served, Workload
from engine.config import EngineConfig

DEMO_ADAPTERS = Path(__file__).parents[1] / "app" / "demo" / "adapters"
SEED = 11
GPU = EngineConfig(device="cuda", max_num_batched_tokens=512, pool_bytes=4 << 30)
# What a dry run has for a GPU: its backend, interpreted, on this machine's memory.
INTERPRETED = EngineConfig(backend="gpu", pool_bytes=1 << 20, max_num_batched_tokens=32)


def run(bench: Bench) -> None:
    with tempfile.TemporaryDirectory() as scratch:
        _run(bench, Path(scratch))


def _run(bench: Bench, scratch: Path) -> None:
    base = TOY if bench.dry else SMOLLM2_135M
    folder = write_base(scratch / "base", base, SEED)
    adapters = [None, *_adapters(scratch, dry=bench.dry)]
    work = Workload(
        streams=3 if bench.dry else 24,
        num_adapters=len(adapters),
        prompt_tokens=6 if bench.dry else 64,
        output_tokens=3 if bench.dry else 32,
        rounds=1,
        seed=SEED,
        vocab_size=base.vocab_size,
    )
    cpu = replace(CPU, max_num_batched_tokens=GPU.max_num_batched_tokens)
    configs = {
        "CPU, float32": cpu,
        "GPU, float32": INTERPRETED if bench.dry else GPU,
    }
    if not bench.dry:
        # Last, because its pool is what start-up finds free.
        configs["GPU, bfloat16"] = replace(GPU, dtype="bfloat16", pool_bytes=None)
    served: dict[str, Served] = {}
    for name, config in configs.items():
        serve = tenfold(folder, adapters, scratch / "store", work, config)
        if not bench.dry:
            serve()  # loads adapters, compiles kernels, captures graphs
        served[name] = serve()
        rate = None if bench.dry else work.total_output_tokens / served[name].seconds
        bench.report(f"engine on {name}", "tok/s", rate, note=f"{work.streams} streams")
    _compare(bench, served["CPU, float32"], served["GPU, float32"])


def _adapters(scratch: Path, *, dry: bool) -> list[Path]:
    if not dry:
        return sorted(path for path in DEMO_ADAPTERS.iterdir() if path.is_dir())
    mixes = [("all-linear", 5), ("q/v", 2)]
    return [
        write_adapter(scratch / f"adapter-{rank}", TOY, TARGET_SETS[name], rank, SEED + rank)
        for name, rank in mixes
    ]


def _compare(bench: Bench, expected: Served, got: Served) -> None:
    differing = sum(a != b for a, b in zip(expected.answers, got.answers, strict=True))
    num_tokens = sum(len(answer) for answer in got.answers)
    distinct = len({tuple(answer) for answer in got.answers})
    note = f"{num_tokens} tokens, {distinct} different answers of {len(got.answers)}"
    bench.report(
        "answers unlike the CPU's", "answers", float(differing), passed=differing == 0, note=note
    )
