"""Goals K6 to K8: all LoRA launches of a decode step alone, at Llama-3-8B's shapes.

Knows nothing of the base's products. One graph holds the four sites of all layers, so each vector
of every adapter is read once a replay, as in a step.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from bench.gpu_inputs import Pool, one_row_each, pool_for, random_tensor
from bench.gpu_timing import Timer
from bench.gpu_worker import Bench
from bench.roofline import MIXED_RANKS
from bench.shapes import LLAMA_3_8B, TARGET_SETS, TOY
from kernels import gpu
from kernels.interface import LoraSegment
from lora.sites import SITES

ALL = TARGET_SETS["all-linear"]
BATCH = 64
# Equal in sum to 64 adapters of `MIXED_RANKS` in turn.
MEAN_RANK = sum(MIXED_RANKS) // len(MIXED_RANKS)
LORA_MS = "LoRA of 64 adapters of rank 16, ms"
"""The fact that the comparison with PEFT reads."""


def run(bench: Bench) -> None:
    loras = LoraBench(bench)
    r16 = loras.distinct("64 of rank 16", [16] * BATCH, ALL)
    bench.report_goal("K6", r16)
    bench.tell_fact(LORA_MS, r16)
    bench.report_goal("K7", loras.distinct("64 of rank 64", [64] * BATCH, ALL))
    mixed = loras.distinct("64 of mixed ranks", [*MIXED_RANKS] * (BATCH // len(MIXED_RANKS)), ALL)
    uniform = loras.distinct(f"64 of rank {MEAN_RANK}", [MEAN_RANK] * BATCH, ALL)
    note = "memory is the sum of ranks by the layout (tests/lora)"
    bench.report_goal("K8", None if mixed is None or uniform is None else mixed / uniform, note)
    loras.distinct("32 of rank 16", [16] * 32, ALL)
    loras.distinct("64 of rank 16 on q/v", [16] * BATCH, TARGET_SETS["q/v"])
    loras.distinct("1 of rank 16", [16], ALL)
    loras.identical("64 rows of one adapter of rank 16", BATCH, 16)


class LoraBench:
    """Times the LoRA of one step for whatever adapters the rows have."""

    def __init__(self, bench: Bench) -> None:
        self._bench = bench
        self._timer = Timer(dry=bench.dry)
        self._base = replace(TOY, num_layers=1) if bench.dry else LLAMA_3_8B

    def distinct(self, what: str, ranks: Sequence[int], modules: tuple[str, ...]) -> float | None:
        """Milliseconds with one row for each rank's own adapter."""
        if self._bench.dry:
            ranks = [min(rank, 5) for rank in ranks[-3:]]
        pool = self._pool(ranks, modules)
        adapters = [pool.random_adapter(modules, rank) for rank in ranks]
        return self._report(what, pool, one_row_each(adapters))

    def identical(self, what: str, num_rows: int, rank: int) -> float | None:
        num_rows, rank = (3, 5) if self._bench.dry else (num_rows, rank)
        pool = self._pool([rank], ALL)
        adapter = pool.random_adapter(ALL, rank)
        return self._report(what, pool, [LoraSegment(0, num_rows, adapter)])

    def _pool(self, ranks: Sequence[int], modules: tuple[str, ...]) -> Pool:
        pool = pool_for(self._base, 0, [(modules, rank) for rank in ranks], dry=self._bench.dry)
        pool.fill()
        return pool

    def _report(self, what: str, pool: Pool, segments: Sequence[LoraSegment]) -> float | None:
        us = self._timer.us(SiteCalls(pool, segments).all_layers)
        floor_us = pool.num_adapter_bytes / float(self._bench.facts["copy"]) * 1e6
        ms = None if us is None else us / 1e3
        self._bench.report(
            f"LoRA of {what}, a step",
            "ms",
            ms,
            floor_share=None if us is None else floor_us / us,
            note="" if self._bench.dry else f"{pool.num_adapter_bytes / 1e9:.3f} GB",
        )
        return ms


class SiteCalls:
    """`add_lora` at the four sites of all layers, on inputs of the sites' shapes."""

    def __init__(self, pool: Pool, segments: Sequence[LoraSegment]) -> None:
        self._num_layers = pool.base.num_layers
        self._plan = gpu.plan_lora(segments)
        num_rows = segments[-1].end
        self._inputs = {}
        for site in SITES:
            num_out = max(end for _, end in site.outputs(pool.base).values())
            self._inputs[site.name] = tuple(
                random_tensor((num_rows, width), pool.dtype, pool.device)
                for width in (num_out, site.num_in(pool.base))
            )

    def all_layers(self, _: int) -> None:
        for layer in range(self._num_layers):
            for name, (y, x) in self._inputs.items():
                gpu.add_lora(y, x, self._plan, (layer, name))
