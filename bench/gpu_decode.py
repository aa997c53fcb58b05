"""Goals K9 to K12: whole decode steps of Llama-3-8B's shapes, with and without adapters.

The decoder is the product's, its weights random. A step is one CUDA graph: embedding, all layers,
head, argmax. Overhead is the step with adapters over the step of the same batch without.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from bench.gpu_inputs import Pool, pool_for
from bench.gpu_model import DecodeStep, random_decoder
from bench.gpu_timing import Timer
from bench.gpu_worker import Bench
from bench.roofline import BLOCK_SIZE, H200, MIXED_RANKS, Machine, step_s
from bench.shapes import LLAMA_3_8B, TARGET_SETS, TOY
from engine.models.decoder import Decoder
from kernels.gpu.launch import round_up

ALL, QUERY_VALUE = TARGET_SETS["all-linear"], TARGET_SETS["q/v"]
K1, K8 = 1024, 8192


@dataclass(frozen=True, slots=True)
class Case:
    """`ranks`: one distinct adapter each, shared out evenly among the batch's rows."""

    batch: int
    context: int
    ranks: tuple[int, ...] = ()
    modules: tuple[str, ...] = ALL
    goal: str | None = None

    @property
    def name(self) -> str:
        context = f"{self.context // 1024}k" if self.context >= 1024 else str(self.context)
        text = f"{self.batch} x {context}"
        if not self.ranks:
            return f"{text}, base only"
        ranks = "/".join(str(rank) for rank in dict.fromkeys(self.ranks))
        targets = "" if self.modules == ALL else " on q/v"
        return f"{text}, {len(self.ranks)} of rank {ranks}{targets}"


def mixed(count: int) -> tuple[int, ...]:
    return MIXED_RANKS * (count // len(MIXED_RANKS))


# The batches of one base case each, in the order of their worth.
CASES: tuple[tuple[Case, ...], ...] = (
    (
        Case(64, K1),
        Case(64, K1, (16,) * 64, goal="K10a"),
        Case(64, K1, (16,), goal="K9b"),
        Case(64, K1, (16,) * 64, QUERY_VALUE, goal="K11b"),
        Case(64, K1, (64,) * 64),
        Case(64, K1, mixed(64)),
    ),
    (Case(1, K1), Case(1, K1, (16,), goal="K9a"), Case(1, K1, (64,))),
    (
        Case(32, K1),
        Case(32, K1, (16,) * 32, goal="K11a"),
        Case(32, K1, (64,) * 32),
        Case(32, K1, mixed(32)),
        Case(32, K1, (16,)),
    ),
    (
        Case(64, K8),
        Case(64, K8, (16,) * 64, goal="K10b"),
        Case(64, K8, (64,) * 64),
        Case(64, K8, mixed(64)),
    ),
    (Case(256, K1), Case(256, K1, (16,) * 64), Case(256, K1, mixed(32)), Case(256, K1, (16,))),
    (Case(32, K8), Case(32, K8, (16,) * 32)),
    (Case(1, K8), Case(1, K8, (16,))),
)
DRY_CASES = ((Case(3, 40), Case(3, 40, (5, 2, 8), goal="K10a"), Case(3, 40, (5,))),)


def run(bench: Bench) -> None:
    groups = DRY_CASES if bench.dry else CASES
    base = TOY if bench.dry else LLAMA_3_8B
    cases = [case for group in groups for case in group]
    num_tokens = max(case.batch * round_up(case.context, BLOCK_SIZE) for case in cases)
    largest = max(cases, key=lambda case: sum(case.ranks) * len(case.modules))
    pool = pool_for(
        base, num_tokens, [(largest.modules, rank) for rank in largest.ranks], dry=bench.dry
    )
    pool.fill()
    decoder = random_decoder(base, pool.dtype, pool.device)
    steps = Steps(bench, pool, decoder)
    for group in groups:
        steps.compare(group)


class Steps:
    """Times cases over one pool and one decoder."""

    def __init__(self, bench: Bench, pool: Pool, decoder: Decoder) -> None:
        self._bench = bench
        self._pool = pool
        self._decoder = decoder
        self._timer = Timer(dry=bench.dry)
        facts = bench.facts
        self._machine = Machine("", float(facts["copy"]), float(facts["matmul"]), 0)

    def compare(self, group: Sequence[Case]) -> None:
        """The group's base case, then the others beside it, then the base case again."""
        alone = self._measure(group[0], None)
        for case in group[1:]:
            overhead = self._overhead(self._measure(case, alone), alone)
            if case.goal is not None:
                self._bench.report_goal(case.goal, overhead, case.name)
        if group[0] == CASES[0][0] or self._bench.dry:
            again = self._measure(group[0], alone, loaded=group[1])
            self._bench.report_goal("K12", self._overhead(again, alone), group[0].name)

    def _measure(self, case: Case, alone: float | None, loaded: Case | None = None) -> float | None:
        """Milliseconds of a step. `loaded`: whose adapters are in the pool although no row's."""
        pool = self._pool
        pool.take_back_all()
        adapters = [
            pool.random_adapter(each.modules, rank)
            for each in (case, *([loaded] if loaded else []))
            for rank in each.ranks
        ]
        step = DecodeStep(pool, case.batch, case.context, adapters if case.ranks else [])
        us = self._timer.us(lambda _: step.run(self._decoder))
        ms = None if us is None else us / 1e3
        floor_ms = self._floor_ms(case, self._machine)
        overhead = self._overhead(ms, alone)
        self._bench.report(
            f"step {case.name}" + (", others' adapters loaded" if loaded else ""),
            "ms",
            ms,
            predicted=None if self._bench.dry else self._floor_ms(case, H200),
            floor_share=None if ms is None else floor_ms / ms,
            note="" if ms is None else _note(case, ms, overhead),
        )
        return ms

    def _floor_ms(self, case: Case, machine: Machine) -> float:
        base = self._pool.base
        lora = self._pool.num_adapter_bytes if case.ranks else 0
        return (step_s(base, case.batch, case.context, machine) + lora / machine.copy) * 1e3

    def _overhead(self, ms: float | None, alone: float | None) -> float | None:
        """Percent."""
        return None if ms is None or alone is None else (ms / alone - 1) * 100


def _note(case: Case, ms: float, overhead: float | None) -> str:
    text = f"{case.batch / ms * 1e3:.0f} tok/s"
    return text if overhead is None else f"{text}, {overhead:+.1f} %"
