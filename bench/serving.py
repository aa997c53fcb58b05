"""Put load on an OpenAI-compatible server and say what its clients saw.

    python -m bench.serving                                   # a running `tenfold demo`
    python -m bench.serving --streams 8 --target a=support-bot:sk-... --target b=...
    python -m bench.serving --rate 4 --requests 200 --target ...

Knows nothing of Tenfold but the file that `tenfold demo` leaves; any OpenAI server will do.
"""

from __future__ import annotations

import asyncio
import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any

import httpx
import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from app.demo.base_model import BASE_MODEL_ID
from bench.load import closed_loop, open_loop
from bench.openai_stream import Sample, Target, measure, synthetic_prompt
from bench.report import Figures, as_rows, describe, figures, machine, table, write_json

RESULTS = Path(__file__).parent / "results"
SUITE_STREAMS = (1, 8, 32)
DEFAULT_OPEN_REQUESTS = 60


@dataclass(frozen=True, slots=True)
class Shape:
    """What every request of a run looks like."""

    prompt_tokens: int
    output_tokens: int
    seed: int
    timeout_s: float


@dataclass(frozen=True, slots=True)
class Load:
    """`streams` for a closed loop or `rate` (requests a second) for an open one."""

    requests: int
    streams: int | None = None
    rate: float | None = None

    def __str__(self) -> str:
        if self.rate is not None:
            return f"open, {self.rate:g}/s"
        return f"{self.streams} stream{'s' if self.streams != 1 else ''}"


Plan = list[tuple[str, list[Target], Load]]


async def run(
    base_url: str, name: str, targets: list[Target], load: Load, shape: Shape, bar: Progress
) -> Figures:
    """Warm every target up with one request, then measure `load` rotating over the targets."""
    task = bar.add_task(f"{name}, {load}", total=load.requests)
    timeout = httpx.Timeout(shape.timeout_s)
    unbounded = httpx.Limits(max_connections=None, max_keepalive_connections=None)
    async with httpx.AsyncClient(
        base_url=base_url, timeout=timeout, limits=unbounded, trust_env=False
    ) as client:

        async def send(index: int, due_at: float) -> Sample:
            prompt = synthetic_prompt(shape.seed, index, shape.prompt_tokens)
            target = targets[index % len(targets)]
            return await measure(
                client, target, prompt, max_tokens=shape.output_tokens, due_at=due_at
            )

        def on_done(_sample: Sample) -> None:
            bar.advance(task)

        for target in targets:
            await measure(client, target, "Hello", max_tokens=2, due_at=0.0)
        if load.rate is not None:
            samples = await open_loop(
                send, rate=load.rate, requests=load.requests, seed=shape.seed, on_done=on_done
            )
        else:
            assert load.streams is not None
            samples = await closed_loop(
                send, streams=load.streams, requests=load.requests, on_done=on_done
            )
    return figures(name, str(load), samples)


def parse_target(text: str) -> Target:
    """`label=model:key`. The model may hold colons; the key may not."""
    label, _, rest = text.partition("=")
    model, _, key = rest.rpartition(":")
    if not (label and model and key):
        raise typer.BadParameter(f"a target is LABEL=MODEL:KEY, not {text!r}")
    return Target(label, model, key)


def demo_targets(demo: dict[str, Any]) -> tuple[list[Target], list[Target]]:
    """The base model with each tenant's key, and all that every tenant may ask for."""
    everything = [
        Target(f"{tenant}/{model}", model, entry["api_key"])
        for tenant, entry in demo["tenants"].items()
        for model in entry["models"]
    ]
    base = [target for target in everything if target.model == BASE_MODEL_ID]
    return base, everything


def main(
    base_url: str = "http://127.0.0.1:8000/v1",
    target: Annotated[list[str] | None, typer.Option(help="LABEL=MODEL:KEY; repeatable")] = None,
    suite: Annotated[
        str | None, typer.Option(help="'demo', the default where no target is given")
    ] = None,
    data_dir: Annotated[Path, typer.Option(help="where demo.json is")] = Path(".tenfold"),
    streams: Annotated[int | None, typer.Option(help="closed loop: this many clients")] = None,
    rate: Annotated[float | None, typer.Option(help="open loop: requests a second")] = None,
    requests: Annotated[int | None, typer.Option(help="default: 3 a stream, at least 6")] = None,
    prompt_tokens: int = 128,
    output_tokens: int = 64,
    seed: int = 0,
    timeout_s: float = 300.0,
    results: Path = RESULTS,
) -> None:
    """Measure output tokens/s, time to first token and inter-token latency."""
    shape = Shape(prompt_tokens, output_tokens, seed, timeout_s)
    if streams is not None and rate is not None:
        raise typer.BadParameter("--streams (closed loop) and --rate (open loop) exclude another")
    if suite not in (None, "demo"):
        raise typer.BadParameter("the only suite is 'demo'")
    if target and suite is None:
        plan = _plan(target, streams, rate, requests)
    else:
        demo = json.loads((data_dir / "demo.json").read_text())
        base_url = demo["base_url"]
        plan = _demo_plan(demo, streams, requests)
    asyncio.run(_measure_all(_api_root(base_url), plan, shape, results))


def _plan(target: list[str], streams: int | None, rate: float | None, requests: int | None) -> Plan:
    targets = [parse_target(text) for text in target]
    if rate is None:
        load = Load(requests or _default_requests(streams or 1), streams=streams or 1)
    else:
        load = Load(requests or DEFAULT_OPEN_REQUESTS, rate=rate)
    return [(", ".join(t.label for t in targets), targets, load)]


def _demo_plan(demo: dict[str, Any], streams: int | None, requests: int | None) -> Plan:
    base, mixed = demo_targets(demo)
    loads = [
        Load(requests or _default_requests(count), streams=count)
        for count in ((streams,) if streams else SUITE_STREAMS)
    ]
    return [
        (name, targets, load)
        for load in loads
        for name, targets in (("base only", base), ("mixed adapters", mixed))
    ]


def _default_requests(streams: int) -> int:
    return max(6, 3 * streams)


async def _measure_all(base_url: str, plan: Plan, shape: Shape, results: Path) -> None:
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    with Progress(*columns, TimeElapsedColumn(), console=Console(stderr=True)) as bar:
        runs = [
            await run(base_url, name, targets, load, shape, bar) for name, targets, load in plan
        ]
    console = Console()
    console.print(table(sorted(runs, key=lambda r: r.name)))
    console.print(describe(machine()))
    path = write_json(results, "serving", {"shape": asdict(shape), "runs": as_rows(runs)})
    console.print(f"written to {path}")


def _api_root(base_url: str) -> str:
    """With /v1 and a slash at its end, so that httpx joins relative paths to it."""
    root = base_url.rstrip("/")
    return f"{root}/" if root.endswith("/v1") else f"{root}/v1/"


if __name__ == "__main__":
    typer.run(main)
