"""Tenfold beside transformers + PEFT's own mixed batch: same machine, run, adapters, prompts.

    python -m bench.peft_mixed_batch --base .tenfold/models/SmolLM2-135M-Instruct

PEFT serves several adapters in one batch by `generate(adapter_names=[...])`. The servers take
turns (A B C A B C ...), so that a machine that gets busier troubles all of them. Invariant: what
was expected is written down in `PREDICTED` before it is measured, and printed beside it; so is
how many answers are the same as PEFT's, because a fast wrong answer is no comparison.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from dataclasses import asdict, replace
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from peft import PeftModel
from rich.console import Console
from rich.progress import Progress
from rich.table import Table
from transformers.utils import logging as transformers_logging

from bench.report import describe, machine, write_json
from bench.tenfold_in_process import CPU, tenfold
from bench.workload import Served, Server, Workload, adapter_name, load_base, write_adapters

RESULTS = Path(__file__).parent / "results"
# Output tokens/s on two cores at 8 streams, 16 adapters, prompt 128, output 64.
PEFT = "PEFT mixed batch"
PREDICTED = {
    "PEFT base alone": 75.0,
    PEFT: 31.0,
    "Tenfold": 62.0,
    "Tenfold, batch-invariant": 50.0,
}


def peft_base_alone(base: Path, work: Workload) -> Server:
    model = load_base(base)
    return lambda: _generate_in_waves(model, work, adapter_names=None)


def peft_mixed_batch(base: Path, adapters: list[Path], work: Workload) -> Server:
    model: Any = PeftModel.from_pretrained(
        load_base(base), str(adapters[0]), adapter_name=adapter_name(0)
    )
    for index, folder in enumerate(adapters[1:], start=1):
        model.load_adapter(str(folder), adapter_name=adapter_name(index))
    names = [adapter_name(i % len(adapters)) for i in range(work.num_requests)]
    return lambda: _generate_in_waves(model.eval(), work, adapter_names=names)


@torch.inference_mode()
def _generate_in_waves(model: Any, work: Workload, adapter_names: list[str] | None) -> Served:
    """Serve `streams` at a time. All requests are equally long, so that no row of a static batch
    ever waits for another: the best case for it."""
    prompts = work.prompts()
    answers: list[list[int]] = []
    started_at = time.perf_counter()
    for first in range(0, len(prompts), work.streams):
        wave = slice(first, first + work.streams)
        ids = torch.tensor(prompts[wave])
        named = {} if adapter_names is None else {"adapter_names": adapter_names[wave]}
        output = model.generate(
            input_ids=ids,
            attention_mask=torch.ones_like(ids),
            max_new_tokens=work.output_tokens,
            do_sample=False,
            **named,
        )
        answers += output[:, work.prompt_tokens :].tolist()
    seconds = time.perf_counter() - started_at
    assert all(len(answer) == work.output_tokens for answer in answers)
    return Served(seconds, answers)


def compare(servers: dict[str, Server], turns: int) -> dict[str, list[Served]]:
    """Every server's turns, after one that is not counted."""
    served: dict[str, list[Served]] = {name: [] for name in servers}
    with Progress(console=Console(stderr=True)) as bar:
        task = bar.add_task("measuring", total=(turns + 1) * len(servers))
        for turn in range(turns + 1):
            for name, server in servers.items():
                bar.update(task, description=f"{name}, {f'turn {turn}' if turn else 'warm-up'}")
                result = server()
                if turn:
                    served[name].append(result)
                bar.advance(task)
    return served


def summarise(served: dict[str, list[Served]], work: Workload) -> list[dict[str, Any]]:
    """One row a server: output tokens/s predicted and measured, beside PEFT's."""
    rates = {
        name: [work.total_output_tokens / turn.seconds for turn in turns]
        for name, turns in served.items()
    }
    reference = statistics.median(rates[PEFT])
    expected = served[PEFT][-1].answers
    return [
        {
            "server": name,
            "predicted": PREDICTED[name],
            "measured": round(statistics.median(rates[name]), 2),
            "turns": [round(rate, 2) for rate in rates[name]],
            "beside_peft": round(statistics.median(rates[name]) / reference, 3),
            "answers_same_as_peft": sum(
                answer == other for answer, other in zip(turns[-1].answers, expected, strict=True)
            ),
        }
        for name, turns in served.items()
    ]


def table(rows: list[dict[str, Any]], work: Workload) -> Table:
    view = Table(title="Output tokens/s")
    for heading in ("server", "predicted", "measured", "every turn", "beside PEFT", "as PEFT"):
        view.add_column(heading)
    for row in rows:
        view.add_row(
            row["server"],
            f"{row['predicted']:.0f}",
            f"{row['measured']:.1f}",
            " ".join(f"{turn:.1f}" for turn in row["turns"]),
            f"{row['beside_peft']:.2f}x",
            f"{row['answers_same_as_peft']}/{work.num_requests}",
        )
    return view


def main(
    base: Annotated[Path, typer.Option(help="the demo's base model folder")],
    streams: int = 8,
    num_adapters: int = 16,
    prompt_tokens: int = 128,
    output_tokens: int = 64,
    rounds: Annotated[int, typer.Option(help="requests of a stream in one turn")] = 2,
    turns: Annotated[int, typer.Option(help="how often each server has its turn")] = 3,
    threads: int = 2,
    seed: int = 0,
    results: Path = RESULTS,
) -> None:
    """Compare output tokens/s at the same load; prints predicted, measured and ratio."""
    loading: Any = transformers_logging
    loading.disable_progress_bar()
    loading.set_verbosity_error()
    torch.set_num_threads(threads)
    work = Workload(streams, num_adapters, prompt_tokens, output_tokens, rounds, seed)
    with tempfile.TemporaryDirectory() as scratch:
        adapters = write_adapters(base, Path(scratch) / "peft", num_adapters, seed)
        store = Path(scratch) / "store"
        invariant = replace(CPU, batch_invariant=True)
        servers = {
            "PEFT base alone": peft_base_alone(base, work),
            PEFT: peft_mixed_batch(base, adapters, work),
            "Tenfold": tenfold(base, adapters, store, work),
            "Tenfold, batch-invariant": tenfold(base, adapters, store, work, invariant),
        }
        rows = summarise(compare(servers, turns), work)
    console = Console()
    console.print(table(rows, work))
    console.print(f"{describe(machine())}, {threads} threads, float32, torch {torch.__version__}")
    workload = {**asdict(work), "threads": threads, "torch": torch.__version__}
    console.print(
        f"written to {write_json(results, 'peft', {'workload': workload, 'servers': rows})}"
    )


if __name__ == "__main__":
    typer.run(main)
