"""Does loading stall those who decode? Eight streams, alone, and while cold adapters are asked for.

The requests for cold adapters have one token and want one, so that little but the loading is added;
a third run asks for adapters that are in the pool already, and so adds the same without loading.
Knows nothing of tables or files. Invariant: the three runs of a round are one after the other, and
the streams ask the same in all of them.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice

from bench.engine_client import EngineClient
from bench.registered_adapters import RegisteredAdapters
from bench.report import percentile_ms
from engine.config import EngineConfig
from engine.messages import AdapterRef
from engine.runners import ModelHost
from lora.base_spec import BaseSpec

NUM_STREAMS = 8
NUM_COLD = 20
NUM_STEPS = 130
STEPS_BETWEEN = 5
PROMPT_TOKENS = 16


@dataclass(frozen=True, slots=True)
class Run:
    """p99_ms: of the streams' inter-token latencies."""

    p99_ms: float
    loading_s: list[float]
    """What each step spent on adapters' loading."""


@dataclass(frozen=True, slots=True)
class Round:
    quiet: Run
    hot: Run
    cold: Run

    @property
    def cold_over_quiet(self) -> float:
        return self.cold.p99_ms / self.quiet.p99_ms

    @property
    def cold_over_hot(self) -> float:
        return self.cold.p99_ms / self.hot.p99_ms


def num_adapters(num_rounds: int) -> int:
    """That must be registered."""
    return NUM_STREAMS + NUM_COLD * (num_rounds + 1)


def measure(
    runner: ModelHost,
    base: BaseSpec,
    registered: RegisteredAdapters,
    config: EngineConfig,
    num_rounds: int,
) -> list[Round]:
    """The streams' adapters and the hot ones are the first registered; the cold ones follow."""
    refs = registered.refs(num_adapters(num_rounds))
    streams, others = refs[:NUM_STREAMS], iter(refs[NUM_STREAMS:])
    client = EngineClient(runner, base, registered.store, config)
    hot = list(islice(others, NUM_COLD))
    _run(client, "warm-up", base, streams, hot)
    rounds = []
    for number in range(num_rounds):
        cold = list(islice(others, NUM_COLD))
        rounds.append(
            Round(
                quiet=_run(client, f"quiet {number}", base, streams, []),
                hot=_run(client, f"hot {number}", base, streams, hot),
                cold=_run(client, f"cold {number}", base, streams, cold),
            )
        )
    client.close()
    return rounds


def _run(
    client: EngineClient,
    name: str,
    base: BaseSpec,
    streams: Sequence[AdapterRef],
    asked_for: Sequence[AdapterRef],
) -> Run:
    rng = random.Random(0)
    answers = [
        client.ask(
            f"{name} stream {number}",
            ref,
            rng.choices(range(base.vocab_size), k=PROMPT_TOKENS),
            NUM_STEPS,
        )
        for number, ref in enumerate(streams)
    ]
    while not all(answer.token_at for answer in answers):
        client.step()
    first_step = len(client.loading_s)
    waiting = iter(asked_for)
    while client.num_under_way:
        if (len(client.loading_s) - first_step) % STEPS_BETWEEN == 0:
            for ref in islice(waiting, 1):
                client.ask(f"{name} {ref.tenant_id}", ref, [1], num_tokens=1)
        client.step()
    gaps = [gap for answer in answers for gap in answer.gaps_s]
    p99_ms = percentile_ms(gaps, 99)
    assert p99_ms is not None
    return Run(p99_ms, client.loading_s[first_step:])
