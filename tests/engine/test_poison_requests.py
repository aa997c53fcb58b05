"""Hundreds of requests that break, in every way a runner can say so, beside as many that do not.

Over the hash runner, with preemption, adapters that come and go, and a step in flight. After every
step the books are checked.
"""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import pytest

from engine.config import EngineConfig
from engine.core import EngineCore
from engine.messages import EngineRequest, FinishReason, TokenOutput
from engine.residency import Residency
from engine.row_failures import NONFINITE_LOGITS, Outcome, RowsFailedError
from engine.scheduler import Step
from engine.sequence import Sequence as EngineSequence
from engine.step_handle import StepHandle
from tests.builders.adapters import TINY_BASE
from tests.builders.engines import make_request
from tests.builders.scripted_loader import make_ref
from tests.stub_engine.clock import VirtualClock
from tests.stub_engine.loader import DelayedLoader
from tests.stub_engine.runner import HashRunner, StepCosts, generate

BLOCK_SIZE = 8
NUM_PAGES = 60
NUM_POISONED = 200
KINDS = ("prepare", "launch", "sample")
CODES = {"prepare": "internal_error", "launch": "internal_error", "sample": "nonfinite_logits"}


@dataclass(frozen=True)
class SpoiledStep:
    """A step in which some rows have no token."""

    handle: StepHandle
    spoiled: frozenset[EngineSequence]

    @property
    def sampling(self) -> Sequence[EngineSequence]:
        return self.handle.sampling

    def result(self) -> Mapping[EngineSequence, Outcome]:
        sampled = self.handle.result()
        return {
            sequence: NONFINITE_LOGITS if sequence in self.spoiled else outcome
            for sequence, outcome in sampled.items()
        }


class PoisonedRunner(HashRunner):
    """A request whose id is `KIND N ...` breaks that way once it has N tokens."""

    def execute(self, step: Step, residency: Residency) -> StepHandle:
        broken = {kind: [each for each in step if is_due(each, kind)] for kind in KINDS}
        if broken["prepare"]:
            raise RowsFailedError({each: ValueError("poison") for each in broken["prepare"]})
        if broken["launch"]:
            raise RuntimeError("poison")
        return SpoiledStep(super().execute(step, residency), frozenset(broken["sample"]))


def is_due(sequence: EngineSequence, kind: str) -> bool:
    name, num_tokens, _ = sequence.request_id.split()
    return name == kind and sequence.num_tokens >= int(num_tokens)


def draw_requests(rng: random.Random, kinds: Sequence[str]) -> list[EngineRequest]:
    requests = []
    for number, kind in enumerate(kinds):
        length, max_tokens = rng.randrange(1, 60), rng.randrange(1, 20)
        name = rng.choice([None, "a", "b", "c", "d"])
        request_id = f"{kind} {length + rng.randrange(max_tokens)} {number}"
        requests.append(
            make_request(
                request_id,
                [rng.randrange(4)] * length,
                adapter=make_ref(name) if name else None,
                tenant_id=f"ten_{number % 3}",
                max_tokens=max_tokens,
            )
        )
    return requests


def run(requests: Sequence[EngineRequest], max_in_flight: int) -> dict[str, list[TokenOutput]]:
    config = EngineConfig(block_size=BLOCK_SIZE, debug_poison_pages=True, max_num_seqs=12)
    config = config.with_pool_bytes(NUM_PAGES * config.page_bytes(TINY_BASE))
    clock = VirtualClock()
    runner = PoisonedRunner(
        config, TINY_BASE, clock, StepCosts(step_s=0.01), max_in_flight=max_in_flight
    )
    loader = DelayedLoader(runner.memory, clock, pages_of=lambda _: 5, delay_s=lambda _: 0.05)
    core = EngineCore(config, TINY_BASE, runner, loader, "stub", clock=clock)
    outputs: dict[str, list[TokenOutput]] = defaultdict(list)
    waiting = list(requests)
    while waiting or core.has_work:
        for _ in range(min(len(waiting), 2)):
            core.add(waiting.pop())
        for batch in core.step().values():
            for output in batch.outputs:
                outputs[output.request_id].append(output)
        core.check_integrity()
        clock.advance_to(clock() + 0.001)  # loads and moves end though nothing runs
    assert core.scheduler.num_available_pages == core.pool.num_pages
    return outputs


@pytest.mark.parametrize("max_in_flight", [1, 2])
def test_two_hundred_poisoned_requests_end_alone(max_in_flight: int) -> None:
    rng = random.Random(max_in_flight)
    kinds = [*(rng.choice(KINDS) for _ in range(NUM_POISONED)), *["healthy"] * NUM_POISONED]
    rng.shuffle(kinds)
    requests = draw_requests(rng, kinds)
    outputs = run(requests, max_in_flight)
    for request, kind in zip(requests, kinds, strict=True):
        parts = outputs[request.request_id]
        tokens = [token for part in parts for token in part.token_ids]
        digest = request.adapter.digest if request.adapter is not None else None
        num_tokens = request.sampling.max_tokens
        true = generate(request.prompt_token_ids, digest, num_tokens, TINY_BASE.vocab_size)
        assert [part for part in parts if part.finish_reason] == parts[-1:], "it ends once"
        if kind == "healthy":
            assert tokens == true
        else:
            num_before = int(request.request_id.split()[1]) - len(request.prompt_token_ids)
            num_lost = num_before - len(tokens)
            assert tokens == true[: len(tokens)]
            assert num_lost in range(max_in_flight), "but for the one in flight"
            assert parts[-1].finish_reason is FinishReason.ERROR
            assert parts[-1].error is not None and parts[-1].error.code == CODES[kind]


def test_control_without_containment_healthy_requests_fail(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(EngineCore, "_divide", lambda self, step: self._fail(step))
    requests = draw_requests(random.Random(1), ["launch", *["healthy"] * 9])
    outputs = run(requests, 1)
    endings = [outputs[request.request_id][-1].finish_reason for request in requests[1:]]
    assert FinishReason.ERROR in endings
