"""What the prefix cache costs where it never hits: prompts that have nothing in common.

    python -m bench.prefix_cache_cost --base FOLDER

The books alone first, over a runner that computes nothing: CPU time on the step loop a token, with
the cache and without, and of the hashing that the intake thread does. From that follows a
prediction for any speed of a model. Then the engine on a real base, with the cache and without in
turns, in CPU time. Neighbours on the machine move that by more than what is looked for, so the
books decide. Invariant: the hit rate of what is measured is 0.
"""

from __future__ import annotations

import argparse
import gc
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from app.demo.base_model import ensure_base_model
from bench.report import describe, machine
from bench.still_pages import StillPages
from engine.config import EngineConfig
from engine.core import EngineCore, Loader, Runner
from engine.messages import AdapterRef, EngineRequest, ModuleFigure, SamplingParams
from engine.model_runner import ModelRunner
from engine.residency import LoadResult, Residency
from engine.scheduler import Step
from engine.step_handle import CompletedStep, StepHandle
from lora.base_spec import BaseSpec

MAX_SHARE = 0.01
"""Of the throughput: the goal."""
GPU_TOKENS_PER_S = 20_000
"""Prompt and output tokens of an 8B model on one large GPU: for the prediction alone."""


class NoLoader:
    """There are no adapters here."""

    def start(self, ref: AdapterRef) -> None:
        raise NotImplementedError  # no request of this bench names an adapter

    def take_completed(self) -> list[LoadResult]:
        return []

    def figures_of(self, ref: AdapterRef) -> tuple[ModuleFigure, ...]:
        return ()


class NoModel(StillPages):
    """Answers token 5 at once."""

    def execute(self, step: Step, residency: Residency) -> StepHandle:
        sampling = [each for each, number in step.items() if number == each.num_uncomputed_tokens]
        return CompletedStep(sampling, [5] * len(sampling))


@dataclass(frozen=True)
class Work:
    requests: int
    prompt_tokens: int
    output_tokens: int

    @property
    def num_tokens(self) -> int:
        return self.requests * (self.prompt_tokens + self.output_tokens)

    def draw(self, seed: int, vocab_size: int) -> list[EngineRequest]:
        """Random prompts: no two begin alike for a block."""
        rng = random.Random(seed)
        sampling = SamplingParams(seed=0, max_tokens=self.output_tokens, temperature=0.0)
        return [
            EngineRequest(
                request_id=f"{seed}-{number}",
                tenant_id=f"tenant-{number % 64}",
                api_id="bench",
                epoch=0,
                prompt_token_ids=rng.choices(range(3, vocab_size), k=self.prompt_tokens),
                sampling=sampling,
            )
            for number in range(self.requests)
        ]


class Engine:
    """An engine with the cache or without, run again and again on new prompts."""

    def __init__(self, config: EngineConfig, base: BaseSpec, runner: Runner) -> None:
        loader: Loader = NoLoader()
        self._vocab_size = base.vocab_size
        self._core = EngineCore(config, base, runner, loader, "bench")

    def run(self, work: Work, seed: int) -> float:
        """CPU seconds of the step loop a token; what is hashed on another thread is not in it."""
        requests = work.draw(seed, self._vocab_size)
        keys = [self._core.block_keys(request) for request in requests]
        gc.collect()
        begin = time.process_time()
        for request, each in zip(requests, keys, strict=True):
            self._core.add(request, each)
        while self._core.has_work:
            self._core.step()
        seconds = time.process_time() - begin
        assert self._core.prefix_cache.num_hit_tokens == 0, "the prompts had something in common"
        return seconds / work.num_tokens

    def hash(self, work: Work, seed: int) -> float:
        """CPU seconds of hashing a token of a prompt."""
        requests = work.draw(seed, self._vocab_size)
        begin = time.process_time()
        for request in requests:
            self._core.block_keys(request)
        return (time.process_time() - begin) / (work.requests * work.prompt_tokens)


def in_turns(
    config: EngineConfig,
    base: BaseSpec,
    open_runner: Callable[[EngineConfig], Runner],
    work: Work,
    turns: int,
) -> tuple[list[float], list[float], Engine]:
    """Seconds a token without the cache and with it, turn by turn; the first turn is not told."""
    without, with_cache = (
        Engine(each, base, open_runner(each))
        for each in (replace(config, prefix_caching=False), config)
    )
    pairs = []
    for turn in range(turns + 1):
        order = (without, with_cache) if turn % 2 else (with_cache, without)
        seconds = {engine: engine.run(work, turn) for engine in order}
        pairs.append((seconds[without], seconds[with_cache]))
    off, on = zip(*pairs[1:], strict=True)
    return list(off), list(on), with_cache


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--base", type=Path, help="Folder of a base model. Default: the demo's.")
    parser.add_argument("--turns", type=int, default=15)
    options = parser.parse_args(argv)
    torch.set_num_threads(1)
    write = sys.stdout.write
    write(f"{describe(machine())}\n")
    write(f"Goal: less than {MAX_SHARE:.0%} of the throughput at a hit rate of 0.\n")
    with tempfile.TemporaryDirectory() as folder:
        path = options.base or ensure_base_model(Path(folder) / "base")
        base = BaseSpec.from_folder(path)
        # A pool that is full of cold blocks after a while: eviction is part of the cost.
        books = EngineConfig(pool_bytes=1 << 40, max_num_seqs=64, max_num_batched_tokens=512)
        books = books.with_pool_bytes(4000 * books.page_bytes(base))
        off, on, engine = in_turns(
            books, base, lambda _: NoModel(), Work(256, 480, 64), options.turns
        )
        added = statistics.median(b - a for a, b in zip(off, on, strict=True))
        hashing = engine.hash(Work(256, 480, 64), seed=10_000)
        write(
            f"Books alone, a token: {statistics.median(off) * 1e6:.2f} us without the cache, "
            f"{added * 1e6:+.2f} us with it; hashing on the intake thread {hashing * 1e6:.2f} us a "
            f"token of a prompt.\n"
            f"Predicted at {GPU_TOKENS_PER_S} tokens/s: {added * GPU_TOKENS_PER_S:.2%} on the step "
            f"loop, which on a GPU runs beside the step before.\n"
        )
        real = EngineConfig(pool_bytes=1 << 27, max_num_seqs=8)
        off, on, _ = in_turns(
            real,
            base,
            lambda config: ModelRunner(config, base, path),
            Work(4, 100, 12),
            options.turns,
        )
        shares = sorted(b / a - 1 for a, b in zip(off, on, strict=True))
        per_token = min(off)
        predicted = (added + hashing) / per_token
        write(
            f"{base.model_id}: {per_token * 1e3:.2f} ms a token without the cache; predicted cost "
            f"{predicted:.3%}.\n"
            f"Measured in {options.turns} turns: {', '.join(f'{each:+.1%}' for each in shares)}\n"
        )
        verdict = "holds" if predicted < MAX_SHARE else "MISSED"
        write(
            f"Cost of the prefix cache at a hit rate of 0: {predicted:.3%} from the books, "
            f"{statistics.median(shares):+.1%} measured (median of turns), "
            f"{min(on) / min(off) - 1:+.1%} (fastest turns); goal {MAX_SHARE:.0%} {verdict}\n"
        )
    return 0 if verdict == "holds" else 1


if __name__ == "__main__":
    sys.exit(main())
