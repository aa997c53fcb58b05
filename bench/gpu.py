"""What a GPU does with Tenfold's kernels: one run, at most eight minutes, one table, one file.

    python -m bench.gpu          on a machine with an NVIDIA GPU
    python -m bench.gpu --dry    every section on the CPU, in Triton's interpreter, at toy sizes

Sections run in the order of what they are worth, each within its own time, in a process of
their own (`bench.gpu_supervisor`). What was expected is written down beforehand
(`bench.gpu_records.GOALS`) and printed beside what was measured. Invariant: a figure that was
not measured is never shown as one; a dry run shows `dry` where a time would stand.
"""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from bench.gpu_records import GOALS, TIME_UNITS, Record
from bench.gpu_supervisor import Outcome, Section, Supervisor
from bench.grid import Grid
from bench.report import write_json
from bench.roofline import H200

RESULTS = Path(__file__).parent / "results"
TOTAL_S = 470.0
DRY_TOTAL_S = 240.0
SECTIONS = (
    Section("ceilings", "bench.gpu_ceilings:run", 40, 20),
    Section("check attention", "bench.gpu_check_attention:run", 45, 60),
    Section("check lora", "bench.gpu_check_lora:run", 40, 60),
    Section("check the rest", "bench.gpu_check_rest:run", 40, 60),
    Section("attention", "bench.gpu_attention:run", 50, 30),
    Section("lora", "bench.gpu_lora:run", 50, 30),
    Section("decode steps", "bench.gpu_decode:run", 100, 60),
    Section("engine", "bench.gpu_engine:run", 70, 60, alone=True),
    Section("baselines", "bench.gpu_baselines:run", 70, 30),
    Section("page layout", "bench.gpu_pages:run", 30, 20),
)


def cell(record: Record, value: float | None, *, dry: bool) -> str:
    if value is None:
        return "dry" if dry and record.unit in TIME_UNITS else "-"
    return f"{value:.1e}" if record.unit == "rel" else f"{value:.4g}"


def figures_grid(outcomes: Sequence[Outcome], *, dry: bool) -> Grid:
    """Every figure that is no goal's, in the order of the run; equal bits are one row a section."""
    rows: list[Sequence[str]] = []
    for outcome in outcomes:
        plain = [record for record in outcome.records if record.goal is None]
        equal = [record for record in plain if record.unit == "bits" and record.passed]
        rows += [_figure_row(record, dry=dry) for record in plain if record not in equal]
        if equal:
            what = f"{len(equal)} comparisons of bits that must be equal"
            rows.append((outcome.section, what, "bits", "-", "0", "-", "ok"))
    headings = ("section", "what", "unit", "predicted", "measured", "of floor", "")
    return Grid("Figures", headings, rows, text_columns=3)


def _figure_row(record: Record, *, dry: bool) -> Sequence[str]:
    verdict = {True: "ok", False: "NOT MET", None: ""}[record.passed]
    return (
        record.section,
        record.what,
        record.unit,
        "-" if record.predicted is None else f"{record.predicted:.4g}",
        cell(record, record.measured, dry=dry),
        "-" if record.floor_share is None else f"{record.floor_share:.0%}",
        f"{verdict} {record.note}".strip(),
    )


def goals_grid(outcomes: Sequence[Outcome], *, dry: bool) -> Grid:
    """One row a goal, measured or not."""
    found = {record.goal: record for each in outcomes for record in each.records if record.goal}
    rows = []
    for goal in GOALS:
        record = found.get(goal.key)
        measured, verdict = "not measured", ""
        if record is not None and record.measured is not None:
            measured = cell(record, record.measured, dry=dry)
            verdict = "met" if record.passed else "NOT MET"
        elif dry and record is not None:
            measured = "dry"
        rows.append(
            (
                goal.key,
                goal.text,
                goal.unit,
                "-" if goal.predicted is None else f"{goal.predicted:.3g}",
                f"{'>=' if goal.at_least else '<='} {goal.limit:.3g} ({goal.stretch:.3g})",
                measured,
                verdict + (f" {record.note}" if record is not None and record.note else ""),
            )
        )
    headings = ("goal", "what", "unit", "predicted", "limit (stretch)", "measured", "")
    return Grid("Goals", headings, rows, text_columns=3)


def sections_grid(outcomes: Sequence[Outcome]) -> Grid:
    rows = [(each.section, each.status, f"{each.seconds:.1f}", each.detail) for each in outcomes]
    return Grid("Sections", ("section", "ended", "s", ""), rows, text_columns=2)


def is_sound(outcomes: Sequence[Outcome], *, dry: bool) -> bool:
    """Whether nothing was wrong. A dry run must reach every section; a real one may be cut."""
    allowed = {"done"} if dry else {"done", "cut", "skipped"}
    records = [record for each in outcomes for record in each.records]
    # A goal of speed that was missed is a finding, not a fault.
    wrong = any(record.passed is False and record.unit not in TIME_UNITS for record in records)
    return not wrong and all(each.status in allowed for each in outcomes)


def main(
    dry: Annotated[bool, typer.Option(help="on the CPU, interpreted, toy sizes")] = False,
    only: Annotated[list[str] | None, typer.Option(help="a section; may be repeated")] = None,
    total_s: Annotated[float | None, typer.Option(help="seconds for all sections")] = None,
    results: Path = RESULTS,
    markdown: Annotated[bool, typer.Option(help="tables for a page")] = False,
) -> None:
    """Measure the GPU path; the last tables say what was found and which goals are met."""
    console = Console(width=None if Console().is_terminal else 150)
    if not dry and shutil.which("nvidia-smi") is None:
        console.print("There is no NVIDIA GPU here; --dry runs all sections without one.")
        raise typer.Exit(2)
    sections = [section for section in SECTIONS if not only or section.name in only]
    allowed_s = total_s or (DRY_TOTAL_S if dry else TOTAL_S)
    # Until this machine's own are measured.
    ceilings = {"copy": H200.copy, "matmul": H200.matmul}
    supervisor = Supervisor(sections, dry=dry, total_s=allowed_s, facts=ceilings)
    outcomes = []
    for outcome in supervisor.run():
        outcomes.append(outcome)
        console.print(f"{outcome.section}: {outcome.status} in {outcome.seconds:.1f} s")
    if dry:
        console.print("Dry run: CPU, Triton's interpreter, toy sizes. No time was measured.")
    for grid in (
        sections_grid(outcomes), figures_grid(outcomes, dry=dry), goals_grid(outcomes, dry=dry)
    ):  # fmt: skip
        if markdown:
            console.print(grid.as_markdown(), soft_wrap=True, markup=False, highlight=False)
        else:
            console.print(grid.as_table())
    content = {
        "dry": dry, "facts": supervisor.facts, "sections": [asdict(each) for each in outcomes]
    }  # fmt: skip
    path = write_json(results, "gpu-dry" if dry else "gpu", content)
    sound = is_sound(outcomes, dry=dry)
    num_figures = sum(len(each.records) for each in outcomes)
    console.print(
        f"bench.gpu{' --dry' if dry else ''}: {'ok' if sound else 'FAILED'}, "
        f"{sum(each.status == 'done' for each in outcomes)} of {len(outcomes)} sections whole, "
        f"{num_figures} figures, written to {path}",
        soft_wrap=True,
    )
    raise typer.Exit(0 if sound else 1)


if __name__ == "__main__":
    typer.run(main)
