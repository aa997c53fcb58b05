"""What a run's samples add up to: figures, a table for people, JSON for machines.

Knows nothing of how the samples were made. Invariant: a figure that could not be measured is
null, never zero.
"""

from __future__ import annotations

import json
import os
import platform
import re
from collections import Counter
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from rich.table import Table

from bench.openai_stream import Sample


@dataclass(frozen=True, slots=True)
class Figures:
    """One run. Latencies in milliseconds; inter-token latency is the gap between text chunks."""

    name: str
    load: str
    requests: int
    wall_s: float
    prompt_tokens: int
    output_tokens: int
    output_tokens_per_s: float
    ttft_p50_ms: float | None
    ttft_p99_ms: float | None
    itl_p50_ms: float | None
    itl_p99_ms: float | None
    errors: dict[str, int]


def figures(name: str, load: str, samples: list[Sample]) -> Figures:
    """Throughput is all output tokens over the time from the first request due to the last end."""
    wall_s = max(s.ended_at for s in samples) - min(s.due_at for s in samples)
    output_tokens = sum(s.output_tokens for s in samples)
    ttfts = [s.ttft_s for s in samples if s.ttft_s is not None]
    gaps = [gap for s in samples for gap in s.gaps_s]
    return Figures(
        name=name,
        load=load,
        requests=len(samples),
        wall_s=round(wall_s, 3),
        prompt_tokens=sum(s.prompt_tokens for s in samples),
        output_tokens=output_tokens,
        output_tokens_per_s=round(output_tokens / wall_s, 2),
        ttft_p50_ms=percentile_ms(ttfts, 50),
        ttft_p99_ms=percentile_ms(ttfts, 99),
        itl_p50_ms=percentile_ms(gaps, 50),
        itl_p99_ms=percentile_ms(gaps, 99),
        errors=dict(Counter(s.error for s in samples if s.error)),
    )


def percentile_ms(values_s: list[float], percent: float, *, digits: int = 1) -> float | None:
    """Nearest-rank percentile: a value that was really seen; None for no values."""
    if not values_s:
        return None
    rank = max(1, -(-len(values_s) * percent // 100))
    return round(sorted(values_s)[int(rank) - 1] * 1000, digits)


def table(runs: list[Figures]) -> Table:
    view = Table(title="Serving, seen by the client")
    view.add_column("models")
    view.add_column("load")
    for heading in (
        "requests", "output tok/s", "TTFT p50 ms", "p99", "ITL p50 ms", "p99", "errors",
    ):  # fmt: skip
        view.add_column(heading, justify="right")
    for run in runs:
        cells = (run.ttft_p50_ms, run.ttft_p99_ms, run.itl_p50_ms, run.itl_p99_ms)
        errors = ", ".join(f"{count} {error}" for error, count in run.errors.items())
        view.add_row(
            run.name,
            run.load,
            str(run.requests),
            f"{run.output_tokens_per_s:.1f}",
            *("-" if cell is None else f"{cell:.0f}" for cell in cells),
            errors or "0",
        )
    return view


def machine() -> dict[str, Any]:
    """The machine that the client runs on, which for the demo is the server's too."""
    return {
        "cpu": _first_match("/proc/cpuinfo", r"model name\s*:\s*(.+)") or platform.processor(),
        "cores": len(os.sched_getaffinity(0)),
        "memory_gib": round(
            int(_first_match("/proc/meminfo", r"MemTotal:\s*(\d+)") or 0) / 2**20, 1
        ),
        "system": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
        "threads": os.environ.get("OMP_NUM_THREADS"),
    }


def describe(machine: dict[str, Any]) -> str:
    return (
        f"{machine['cpu']}, {machine['cores']} cores, {machine['memory_gib']} GiB, "
        f"{machine['system']}, Python {machine['python']}"
    )


def write_json(folder: Path, kind: str, content: dict[str, Any]) -> Path:
    """`<folder>/<kind>-<time>.json`, with the machine's description added."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{kind}-{datetime.now(UTC):%Y%m%dT%H%M%SZ}.json"
    path.write_text(json.dumps({"machine": machine(), **content}, indent=2) + "\n")
    return path


def as_rows(runs: list[Figures]) -> list[dict[str, Any]]:
    return [asdict(run) for run in runs]


def _first_match(path: str, pattern: str) -> str | None:
    try:
        match = re.search(pattern, Path(path).read_text())
    except OSError:
        return None
    return match[1].strip() if match else None
