"""More adapters than fit: no cliff, no stall, and what the scheduler costs.

    python -m bench.adapters            (make bench-adapters; the machine should do nothing else)

On SmolLM2-135M, in float32 on this machine's cores, with rank-4 q/v adapters that are registered in
a store before anything is measured. Invariant: what was expected is printed before it is measured.
The last line has the ratios.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import torch
import typer
from rich.console import Console
from rich.markdown import Markdown

from app.demo.base_model import ensure_base_model
from bench import no_stall
from bench.no_cliff import (
    Population,
    Predicted,
    Streams,
    Turn,
    pool_bytes,
    predict,
    time_of_a_load,
)
from bench.registered_adapters import RegisteredAdapters
from bench.report import describe, machine, percentile_ms, write_json
from bench.scheduler_cost import AIM_MISSED
from bench.svg_plot import line_plot
from engine.config import EngineConfig
from engine.runners import open_runner
from lora.base_spec import BaseSpec

ROOT = Path(__file__).parents[1]
RESULTS = Path(__file__).parent / "results"
POPULATIONS = [8, 32, 256, 2000]
FITS = 32
MAX_LOSS = 0.05
"""Of the output tokens/s, beyond what the loads are predicted to cost."""
MAX_TTFT_RATIO = 1.5
MAX_LOADING_MS = 1.0
AIM_STALL = 1.2
# Written down before the first run. A miss waits for the step under way, and so for a step more
# than a hit; a load takes some ms of one core of two, and a step takes ten times that.
PREDICTED_TTFT_RATIO = 1.3
PREDICTED_LOADING_MS = 0.3
PREDICTED_STALL = 1.15


@dataclass(frozen=True, slots=True)
class Row:
    """One population: medians over its turns, and over all requests of them."""

    registered: int
    tokens_per_s: float
    turns: list[float]
    of_8: float
    expected_of_8: float
    predicted_miss_rate: float
    miss_rate: float
    predicted_reads: float
    reads: float
    from_host: float
    ttft_hit_ms: float | None
    ttft_miss_ms: float | None
    p99_loading_ms: float | None
    max_loading_ms: float

    @property
    def ttft_ratio(self) -> float | None:
        if not self.ttft_hit_ms or not self.ttft_miss_ms:
            return None
        return self.ttft_miss_ms / self.ttft_hit_ms


def summarise(
    turns: dict[int, list[Turn]], predicted: dict[int, Predicted], load_s: float
) -> list[Row]:
    """The first population is what the others are compared with."""
    first = next(iter(turns))
    reference = statistics.median(turn.tokens_per_s for turn in turns[first])
    seconds = statistics.median(turn.seconds for turn in turns[first])
    rows = []
    for population, measured in turns.items():
        rates = [turn.tokens_per_s for turn in measured]
        answers = [answer for turn in measured for answer in turn.answers]
        hits = [answer.ttft_s for answer in answers if answer.was_in_pool]
        loading_s = [seconds for turn in measured for seconds in turn.loading_s]
        misses = [answer.ttft_s for answer in answers if not answer.was_in_pool]
        rows.append(
            Row(
                registered=population,
                tokens_per_s=statistics.median(rates),
                turns=rates,
                of_8=statistics.median(rates) / reference,
                expected_of_8=predicted[population].share(seconds, load_s),
                predicted_miss_rate=predicted[population].miss_rate,
                miss_rate=statistics.mean(turn.miss_rate for turn in measured),
                predicted_reads=predicted[population].reads,
                reads=statistics.mean(turn.num_reads for turn in measured),
                from_host=statistics.mean(turn.num_from_host for turn in measured),
                ttft_hit_ms=percentile_ms(hits, 50),
                ttft_miss_ms=percentile_ms(misses, 50),
                p99_loading_ms=percentile_ms(loading_s, 99, digits=3),
                max_loading_ms=1e3 * max(loading_s),
            )
        )
    return rows


def cliff_table(rows: Sequence[Row]) -> str:
    """Markdown."""
    lines = [
        "| registered | output tok/s | of that at the first | expected | misses, predicted "
        "| misses | reads a turn, predicted | reads | from the host | TTFT hit, ms | miss, ms |",
        "|---" * 11 + "|",
    ]
    lines += [
        f"| {row.registered} | {row.tokens_per_s:.1f} | {row.of_8:.3f} | {row.expected_of_8:.3f} "
        f"| {row.predicted_miss_rate:.0%} | {row.miss_rate:.0%} | {row.predicted_reads:.1f} "
        f"| {row.reads:.1f} | {row.from_host:.1f} | {_ms(row.ttft_hit_ms)} "
        f"| {_ms(row.ttft_miss_ms)} |"
        for row in rows
    ]
    return "\n".join(lines)


def stall_table(rounds: Sequence[no_stall.Round]) -> str:
    """Markdown."""
    lines = ["| round | quiet, ms | hot, ms | cold, ms | cold / quiet | cold / hot |"]
    lines.append("|---" * 6 + "|")
    lines += [
        f"| {number} | {each.quiet.p99_ms:.0f} | {each.hot.p99_ms:.0f} | {each.cold.p99_ms:.0f} "
        f"| {each.cold_over_quiet:.2f} | {each.cold_over_hot:.2f} |"
        for number, each in enumerate(rounds, start=1)
    ]
    return "\n".join(lines)


def plot(rows: Sequence[Row]) -> str:
    return line_plot(
        "Output tokens/s of eight streams, each with another adapter",
        f"adapters registered (about {FITS} fit)",
        "tokens/s",
        {
            "measured": [(row.registered, row.tokens_per_s) for row in rows],
            "expected: the first, less the loads": [
                (row.registered, rows[0].tokens_per_s * row.expected_of_8) for row in rows
            ],
        },
    )


def verdict(rows: Sequence[Row], rounds: Sequence[no_stall.Round], scheduler: str) -> str:
    """The last line: the ratios, and what they should be."""
    last = rows[-1]
    floor = last.expected_of_8 - MAX_LOSS
    ttft = f"{last.ttft_ratio:.2f}" if last.ttft_ratio is not None else "-"
    stall = statistics.median(each.cold_over_quiet for each in rounds)
    alone = statistics.median(each.cold_over_hot for each in rounds)
    worst_ms = max(
        [row.max_loading_ms for row in rows]
        + [1e3 * max(each.cold.loading_s, default=0.0) for each in rounds]
    )
    return (
        f"tokens/s at {last.registered} over {rows[0].registered}: {last.of_8:.3f} "
        f"(>= {floor:.3f}); TTFT miss/hit {ttft} (<= {MAX_TTFT_RATIO}); "
        f"loading on the step loop, worst step {worst_ms:.2f} ms (<= {MAX_LOADING_MS}), p99 of "
        f"steps {last.p99_loading_ms} ms; "
        f"p99 ITL beside 20 cold adapters {stall:.2f}x quiet (aim {AIM_STALL}), "
        f"{alone:.2f}x hot; scheduler: {scheduler}"
    )


def scheduler_cost(console: Console) -> str:
    """Run that bench; returns its last line, which says whether its aim was met."""
    command = [sys.executable, "-m", "bench.scheduler_cost"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode not in (0, AIM_MISSED):
        raise RuntimeError(f"bench.scheduler_cost failed: {done.stderr}")
    console.print(done.stdout, markup=False, highlight=False)
    return done.stdout.strip().splitlines()[-1]


def main(
    base: Path = ROOT / ".tenfold/models/SmolLM2-135M-Instruct",
    adapters: Annotated[Path, typer.Option(help="where the registered ones are kept")] = ROOT
    / ".tenfold/bench/adapters",
    populations: Annotated[list[int], typer.Option("--registered")] = POPULATIONS,
    num_turns: Annotated[int, typer.Option("--turns", help="of each population")] = 3,
    num_requests: Annotated[int, typer.Option("--requests", help="in a turn")] = 64,
    num_rounds: Annotated[int, typer.Option("--rounds", help="of quiet, hot, cold")] = 5,
    threads: int = 2,
    docs: Annotated[Path, typer.Option(help="where table and plot are written")] = ROOT / "docs",
    results: Path = RESULTS,
) -> None:
    """Measure no cliff, no stall and the scheduler's cost; prints what was predicted first."""
    console = Console(width=160)
    torch.set_num_threads(threads)
    spec = BaseSpec.from_folder(ensure_base_model(base))
    registered = RegisteredAdapters(adapters, spec)
    console.print(f"registering {max(populations)} adapters in {adapters}, outside of the measure")
    registered.refs(max([*populations, no_stall.num_adapters(num_rounds)]))
    streams = Streams(num_requests=num_requests)
    # No prefix repeats here: what is cold is adapters, so that as many fit as are said to.
    roomy = EngineConfig(prefix_caching=False)
    scarce = roomy.with_pool_bytes(pool_bytes(roomy, spec, FITS, streams))
    runner = open_runner(roomy, spec, base)
    load_s = time_of_a_load(runner, spec, registered)
    predicted = {each: predict(each, streams, num_turns, FITS) for each in populations}
    console.print(
        f"predicted: a load takes {1e3 * load_s:.1f} ms of a loader's thread; "
        f"TTFT miss/hit {PREDICTED_TTFT_RATIO}; loading on the step loop, worst step "
        f"{PREDICTED_LOADING_MS} ms; p99 ITL beside cold adapters {PREDICTED_STALL}x quiet"
    )
    for population, each in predicted.items():
        console.print(
            f"predicted at {population}: {each.miss_rate:.0%} misses, {each.reads:.1f} reads a "
            f"turn, at most {1e3 * each.reads * load_s:.0f} ms lost by them"
        )
    engines = {
        each: Population(each, runner, spec, registered, scarce, streams) for each in populations
    }
    turns: dict[int, list[Turn]] = {each: [] for each in populations}
    for number in range(num_turns):
        for population, engine in engines.items():
            turns[population].append(engine.turn())
            rate = turns[population][-1].tokens_per_s
            console.print(f"turn {number + 1}, {population} registered: {rate:.1f} tokens/s")
    for engine in engines.values():
        engine.close()
    rows = summarise(turns, predicted, load_s)
    rounds = no_stall.measure(runner, spec, registered, roomy, num_rounds)
    scheduler = scheduler_cost(console)
    page = report(rows, rounds, threads)
    (docs / "no-cliff.md").write_text(page)
    (docs / "no-cliff.svg").write_text(plot(rows))
    console.print(Markdown(page))
    content = {"rows": [asdict(row) for row in rows], "rounds": [asdict(each) for each in rounds]}
    console.print(f"written to {write_json(results, 'adapters', content)} and {docs}/no-cliff.*")
    console.print(verdict(rows, rounds, scheduler), markup=False, soft_wrap=True)


def report(rows: Sequence[Row], rounds: Sequence[no_stall.Round], threads: int) -> str:
    """The page for docs/."""
    return "\n".join(
        [
            "# More adapters than fit",
            "",
            f"Written by `make bench-adapters` on {datetime.now(UTC):%Y-%m-%d}: "
            f"{describe(machine())}, {threads} threads, SmolLM2-135M in float32.",
            "",
            "## No cliff",
            f"Eight streams with eight distinct adapters (rank 4, q and v) in flight, drawn by "
            f"Zipf's law from those registered; about {FITS} fit in the pool. *Expected* is the "
            "first row's speed, if the step loop stood still for every adapter that is read.",
            "",
            cliff_table(rows),
            "",
            "![output tokens/s over registered adapters](no-cliff.svg)",
            "",
            "## No stall",
            f"p99 inter-token latency of eight streams: alone, while {no_stall.NUM_COLD} adapters "
            "that are in the pool are asked for, and while as many are that must be read.",
            "",
            stall_table(rounds),
            "",
        ]
    )


def _ms(value: float | None) -> str:
    return "-" if value is None else f"{value:.0f}"


if __name__ == "__main__":
    typer.run(main)
