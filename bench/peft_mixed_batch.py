"""Tenfold beside transformers + PEFT's own mixed batch: same machine, run, adapters, prompts.

    python -m bench.peft_mixed_batch --base .tenfold/models/SmolLM2-135M-Instruct

PEFT serves several adapters in one batch by `generate(adapter_names=[...])`. The servers take
turns (A B C A B C ...), so that a machine that gets busier troubles all of them. Invariant: what
was expected is written down in `PREDICTED` before it is measured, and printed beside it.
"""

from __future__ import annotations

import random
import statistics
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from peft import LoraConfig, get_peft_model
from rich.console import Console
from rich.progress import Progress
from rich.table import Table
from transformers import AutoModelForCausalLM
from transformers.utils import logging as transformers_logging

from bench.report import describe, machine, write_json

RESULTS = Path(__file__).parent / "results"
RANKS = (8, 16, 32)
TARGETS = (
    "all-linear",
    ["q_proj", "v_proj"],
    ["q_proj", "k_proj", "v_proj", "o_proj"],
    ["gate_proj", "up_proj", "down_proj"],
)

# Output tokens/s on two cores at 8 streams, 16 adapters, prompt 128, output 64.
PREDICTED = {"PEFT base alone": 75.0, "PEFT mixed batch": 31.0, "Tenfold": 62.0}

Run = Callable[[], float]


@dataclass(frozen=True, slots=True)
class Workload:
    """Every stream asks `rounds` times, each time for another adapter than its neighbours."""

    streams: int
    num_adapters: int
    prompt_tokens: int
    output_tokens: int
    rounds: int
    vocab_size: int
    seed: int

    def prompts(self) -> list[list[int]]:
        """[rounds * streams][prompt_tokens]; request i asks for adapter i % num_adapters."""
        rng = random.Random(self.seed)
        return [
            [rng.randrange(self.vocab_size) for _ in range(self.prompt_tokens)]
            for _ in range(self.rounds * self.streams)
        ]

    @property
    def total_output_tokens(self) -> int:
        return self.rounds * self.streams * self.output_tokens


def write_adapters(base: Path, folder: Path, count: int, seed: int) -> list[Path]:
    """`count` random PEFT adapters, ranks and targets in turn, that do change the output."""
    torch.manual_seed(seed)
    model: Any = load_base(base)
    for index in range(count):
        config = lora_config(index)
        if index == 0:
            model = get_peft_model(model, config, adapter_name=adapter_name(index))
        else:
            model.add_adapter(adapter_name(index), config)
    for name, parameter in model.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(parameter, std=0.02)
    model.save_pretrained(str(folder), save_embedding_layers=False)
    return [folder / adapter_name(index) for index in range(count)]


def lora_config(index: int) -> LoraConfig:
    rank = RANKS[index % len(RANKS)]
    return LoraConfig(
        task_type="CAUSAL_LM",
        r=rank,
        lora_alpha=2 * rank,
        target_modules=TARGETS[index % len(TARGETS)],
    )


def adapter_name(index: int) -> str:
    return f"adapter-{index}"


def load_base(base: Path) -> Any:
    model: Any = AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32)
    return model.eval()


def peft_base_alone(base: Path, work: Workload) -> Run:
    model = load_base(base)
    return lambda: _generate_in_waves(model, work, adapter_names=None)


def peft_mixed_batch(base: Path, adapters: list[Path], work: Workload) -> Run:
    from peft import PeftModel

    model: Any = PeftModel.from_pretrained(
        load_base(base), str(adapters[0]), adapter_name=adapter_name(0)
    )
    for index, folder in enumerate(adapters[1:], start=1):
        model.load_adapter(str(folder), adapter_name=adapter_name(index))
    names = [adapter_name(i % len(adapters)) for i in range(work.rounds * work.streams)]
    return lambda: _generate_in_waves(model.eval(), work, adapter_names=names)


@torch.inference_mode()
def _generate_in_waves(model: Any, work: Workload, adapter_names: list[str] | None) -> float:
    """Seconds to serve all prompts, `streams` at a time. All are equally long, so that no row
    of a static batch ever waits for another: the best case for it."""
    prompts = work.prompts()
    started_at = time.perf_counter()
    for first in range(0, len(prompts), work.streams):
        wave = slice(first, first + work.streams)
        ids = torch.tensor(prompts[wave])
        named = {} if adapter_names is None else {"adapter_names": adapter_names[wave]}
        output = model.generate(
            input_ids=ids,
            attention_mask=torch.ones_like(ids),
            min_new_tokens=work.output_tokens,
            max_new_tokens=work.output_tokens,
            do_sample=False,
            **named,
        )
        assert output.shape[1] == work.prompt_tokens + work.output_tokens
    return time.perf_counter() - started_at


def compare(servers: dict[str, Run], work: Workload, turns: int) -> dict[str, list[float]]:
    """Output tokens/s of every server in every turn, after one turn that is not counted."""
    measured: dict[str, list[float]] = {name: [] for name in servers}
    with Progress(console=Console(stderr=True)) as bar:
        task = bar.add_task("measuring", total=(turns + 1) * len(servers))
        for turn in range(turns + 1):
            for name, run in servers.items():
                bar.update(task, description=f"{name}, {'warming up' if turn == 0 else turn}")
                seconds = run()
                if turn > 0:
                    measured[name].append(work.total_output_tokens / seconds)
                bar.advance(task)
    return measured


def table(measured: dict[str, list[float]]) -> Table:
    view = Table(title="Output tokens/s")
    for heading in ("server", "predicted", "measured (median)", "every turn", "beside PEFT"):
        view.add_column(heading)
    reference = statistics.median(measured["PEFT mixed batch"])
    for name, turns in measured.items():
        median = statistics.median(turns)
        view.add_row(
            name,
            f"{PREDICTED[name]:.0f}",
            f"{median:.1f}",
            " ".join(f"{turn:.1f}" for turn in turns),
            f"{median / reference:.2f}x",
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
    work = Workload(streams, num_adapters, prompt_tokens, output_tokens, rounds, 49152, seed)
    with tempfile.TemporaryDirectory() as scratch:
        adapters = write_adapters(base, Path(scratch), num_adapters, seed)
        servers = {
            "PEFT base alone": peft_base_alone(base, work),
            "PEFT mixed batch": peft_mixed_batch(base, adapters, work),
        }
        measured = compare(servers, work, turns)
    console = Console()
    console.print(table(measured))
    console.print(f"{describe(machine())}, {threads} threads, float32")
    shape = {"streams": streams, "num_adapters": num_adapters, "prompt_tokens": prompt_tokens,
             "output_tokens": output_tokens, "rounds": rounds, "threads": threads, "seed": seed,
             "dtype": "float32", "torch": torch.__version__}  # fmt: skip
    path = write_json(
        results, "peft", {"workload": shape, "predicted": PREDICTED, "measured": measured}
    )
    console.print(f"written to {path}")


if __name__ == "__main__":
    typer.run(main)
