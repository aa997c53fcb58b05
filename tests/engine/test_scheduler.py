"""The scheduler, simulated without tensors: budgets, pages, adapters, preemption, progress."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import structs

from engine.config import EngineConfig
from engine.core import EngineCore
from engine.messages import AdapterRef, EngineRequest, FinishReason, TokenOutput
from engine.residency import Residency
from engine.scheduler import Step
from engine.sequence import Sequence
from engine.step_handle import CompletedStep, StepHandle
from tests.builders.adapters import TINY_BASE
from tests.builders.engines import make_request, tokens_of
from tests.builders.scripted_loader import CORRUPT, PAGE_BYTES, ScriptedLoader, make_ref
from tests.builders.scripted_mover import ScriptedMover


@dataclass
class ScriptedRunner:
    """Answers token `position % 100`; checks on each step what a real runner relies on."""

    config: EngineConfig
    steps: list[dict[str, int]] = field(default_factory=list)
    poison: str | None = None
    max_in_flight = 1

    def __post_init__(self) -> None:
        mover = ScriptedMover()
        self.swap_out, self.swap_in = mover.swap_out, mover.swap_in

    def execute(self, step: Step, residency: Residency) -> StepHandle:
        assert 0 < sum(step.values()) <= self.config.max_num_batched_tokens
        assert len(step) <= self.config.max_num_seqs
        sampled: dict[Sequence, int] = {}
        for sequence, num_tokens in step.items():
            assert 0 < num_tokens <= sequence.num_uncomputed_tokens
            if sequence.adapter is not None:
                assert residency.weights(sequence.adapter) is not None
            end = sequence.num_computed_tokens + num_tokens
            assert len(sequence.block_table) * self.config.block_size >= end
            if end == sequence.num_tokens:
                sampled[sequence] = sequence.num_tokens % 100
        if self.poison in [sequence.request_id for sequence in step]:
            raise RuntimeError("kernel failed")
        self.steps.append({sequence.request_id: n for sequence, n in step.items()})
        return CompletedStep(list(sampled), list(sampled.values()))


class Simulation:
    def __init__(self, num_pages: int = 20, delay: int = 0, **config: int) -> None:
        self.config = EngineConfig(block_size=8, pool_bytes=num_pages * PAGE_BYTES, **config)
        self.runner = ScriptedRunner(self.config)
        self.loader = ScriptedLoader(delay)
        self.core = EngineCore(self.config, TINY_BASE, self.runner, self.loader, "sim")

    def step(self) -> list[TokenOutput]:
        batches = self.core.step()
        self.core.check_integrity()
        return [output for batch in batches.values() for output in batch.outputs]

    def run(self, requests: list[EngineRequest], limit: int = 2000) -> dict[str, list[TokenOutput]]:
        outputs: dict[str, list[TokenOutput]] = {}
        for request in requests:
            self.core.add(request)
        for _ in range(limit):
            if not self.core.has_work:
                return outputs
            for output in self.step():
                outputs.setdefault(output.request_id, []).append(output)
        raise AssertionError("no end in sight")


def expected_tokens(num_prompt: int, max_tokens: int) -> list[int]:
    return [(num_prompt + i) % 100 for i in range(max_tokens)]


requests_strategy = st.lists(
    st.tuples(
        st.integers(1, 60),  # prompt
        st.integers(1, 30),  # output
        st.sampled_from([None, "a", "b", "c", "d"]),
    ),
    min_size=1,
    max_size=12,
)


@settings(max_examples=150, deadline=None, derandomize=True)
@given(
    shapes=requests_strategy,
    num_pages=st.integers(18, 40),
    budget=st.integers(1, 64),
    max_num_seqs=st.integers(1, 6),
    delay=st.integers(0, 5),
    adapter_pages=st.integers(1, 6),
)
def test_every_request_ends_once_with_all_its_tokens_however_scarce_pages_are(
    shapes: list[tuple[int, int, str | None]],
    num_pages: int,
    budget: int,
    max_num_seqs: int,
    delay: int,
    adapter_pages: int,
) -> None:
    simulation = Simulation(
        num_pages, delay, max_num_batched_tokens=budget, max_num_seqs=max_num_seqs
    )
    simulation.loader.pages = dict.fromkeys("abcd", adapter_pages)
    requests = [
        make_request(
            f"r{i}",
            [1] * num_prompt,
            adapter=make_ref(name) if name else None,
            max_tokens=max_tokens,
        )
        for i, (num_prompt, max_tokens, name) in enumerate(shapes)
    ]
    tokens = tokens_of(simulation.run(requests))
    for request, (num_prompt, max_tokens, _) in zip(requests, shapes, strict=True):
        assert tokens[request.request_id] == expected_tokens(num_prompt, max_tokens)
    assert simulation.core.scheduler.num_available_pages == num_pages


def test_prefill_chunks_and_decodes_share_a_step() -> None:
    simulation = Simulation(max_num_batched_tokens=10)
    simulation.run(
        [make_request("short", [1] * 3, max_tokens=4), make_request("long", [1] * 20, max_tokens=1)]
    )
    assert simulation.runner.steps == [
        {"short": 3, "long": 7},
        {"short": 1, "long": 9},
        {"short": 1, "long": 4},
        {"short": 1},
    ]


def test_a_request_whose_adapter_is_loading_holds_nobody_up() -> None:
    simulation = Simulation(delay=6)
    slow = make_request("slow", [1] * 4, adapter=make_ref("a"), max_tokens=2)
    outputs = simulation.run([slow, make_request("quick", [1] * 4, max_tokens=3)])
    assert simulation.runner.steps[:3] == [{"quick": 4}, {"quick": 1}, {"quick": 1}]
    assert len(tokens_of(outputs)["slow"]) == 2


def test_a_corrupt_adapter_fails_only_its_own_requests_and_is_fetched_again() -> None:
    simulation = Simulation()
    simulation.loader.corrupt = {"a"}
    requests = [
        make_request("bad 1", [1], adapter=make_ref("a")),
        make_request("good", [1], adapter=make_ref("b")),
        make_request("bad 2", [1], adapter=make_ref("a")),
    ]
    outputs = simulation.run(requests)
    assert [outputs[name][-1].error for name in ("bad 1", "bad 2")] == [CORRUPT, CORRUPT]
    assert outputs["good"][-1].finish_reason is FinishReason.LENGTH
    simulation.loader.corrupt = set()
    again = simulation.run([make_request("again", [1], adapter=make_ref("a"))])
    assert len(tokens_of(again)["again"]) == 8


def test_a_running_requests_adapter_is_never_evicted_and_an_idle_one_is() -> None:
    simulation = Simulation(num_pages=12)
    simulation.loader.pages = {"a": 6, "b": 6}
    first = make_request("first", [1] * 8, adapter=make_ref("a"), max_tokens=12)
    second = make_request("second", [1] * 8, adapter=make_ref("b"), max_tokens=4)
    outputs = simulation.run([first, second])
    assert len(tokens_of(outputs)["first"]) == 12
    order = [name for step in simulation.runner.steps for name in step]
    assert order == ["first"] * 12 + ["second"] * 4
    assert simulation.core.residency.ready_keys() == {("ten_b", "sha256:b")}


def test_a_request_that_can_never_fit_is_answered_at_once() -> None:
    simulation = Simulation(num_pages=5)
    simulation.loader.pages = {"huge": 5}
    outputs = simulation.run(
        [
            make_request("long", [1] * 40, max_tokens=30),
            make_request("huge adapter", [1], adapter=make_ref("huge")),
            make_request("fits", [1] * 10),
        ]
    )
    for name, code in (("long", "request_too_large"), ("huge adapter", "adapter_too_large")):
        (only,) = outputs[name]
        assert only.error is not None and only.error.code == code
    assert len(tokens_of({"fits": outputs["fits"]})["fits"]) == 8


def test_a_request_that_never_fits_beside_an_adapter_that_left_the_pool_is_answered() -> None:
    simulation = Simulation(num_pages=9)
    simulation.loader.pages = {"a": 3}
    simulation.run([make_request("brings it", [1], adapter=make_ref("a"))])
    simulation.run([make_request("takes its pages", [1] * 60)])
    (only,) = simulation.run([make_request("large", [1] * 59, adapter=make_ref("a"))])["large"]
    assert only.error is not None and only.error.code == "request_too_large"
    assert simulation.core.residency.ready_keys() == set()


def test_a_request_that_wants_more_than_the_pool_has_ends_by_length() -> None:
    simulation = Simulation(num_pages=5)
    simulation.loader.pages = {"a": 2}
    base = make_request("base", [1] * 10, max_tokens=200)
    adapter = make_request("adapter", [1] * 10, adapter=make_ref("a"), max_tokens=200)
    outputs = simulation.run([base, adapter])
    assert [len(tokens_of(outputs)[name]) for name in ("base", "adapter")] == [30, 14]
    assert outputs["adapter"][-1].finish_reason is FinishReason.LENGTH


def test_a_long_prompt_never_makes_a_running_stream_wait() -> None:
    simulation = Simulation(num_pages=40, delay=3, max_num_batched_tokens=16)
    late = make_request("late", [1] * 150, adapter=make_ref("a"), max_tokens=1)
    streams = [make_request(name, [1] * 4, max_tokens=30) for name in ("b", "c")]
    simulation.run([late, *streams])
    steps = [set(step) for step in simulation.runner.steps]
    assert all({"b", "c"} <= step for step in steps[:30])
    assert any("late" in step for step in steps[:10]), "the prompt is computed meanwhile"


def test_no_more_adapters_are_read_at_a_time_than_the_limit_and_tenants_take_turns() -> None:
    simulation = Simulation(num_pages=40, delay=4, max_loads=3)
    greedy = [
        make_request(
            f"g{i}", [1], adapter=AdapterRef(tenant_id="g", digest=str(i), locator=f"g{i}")
        )
        for i in range(9)
    ]
    other = make_request("other", [1], adapter=make_ref("b"))
    for request in [*greedy, other]:
        simulation.core.add(request)
    assert simulation.loader.started == ["g0", "g1", "g2"]
    while len(simulation.loader.started) < 4:
        simulation.step()
    assert simulation.loader.started[3:5] == ["g3", "b"], "of who has the fewest under way"
    simulation.run([])
    assert len(simulation.loader.started) == 10


def test_a_waiting_requests_adapter_does_not_take_pages_before_its_tokens_fit_too() -> None:
    simulation = Simulation(num_pages=16, max_age_s=0)
    simulation.loader.pages = {"w": 8}
    simulation.core.add(make_request("running", [1] * 40, max_tokens=16))
    simulation.step()
    simulation.core.add(make_request("waiting", [1] * 60, adapter=make_ref("w"), max_tokens=2))
    for number in range(30):
        simulation.core.add(make_request(f"small {number}", [1], max_tokens=2))
    outputs = simulation.run([])
    assert simulation.loader.started == ["w"], "it was read once, not evicted and read again"
    order = [name for step in simulation.runner.steps for name in step]
    assert order.index("waiting") < order.index("small 0")
    assert len(tokens_of({"waiting": outputs["waiting"]})["waiting"]) == 2


@pytest.mark.parametrize(
    "prompt", [[], [TINY_BASE.vocab_size], [-1], [1] * TINY_BASE.max_model_len]
)
def test_a_prompt_that_the_api_should_have_refused_is_answered(prompt: list[int]) -> None:
    simulation = Simulation(num_pages=80)
    (only,) = simulation.run([make_request("bad", prompt)])["bad"]
    assert only.error is not None and only.error.code == "invalid_prompt"


def test_a_delivered_token_that_would_be_read_as_a_placeholder_is_refused() -> None:
    request = structs.replace(make_request("bad", [1]), delivered_token_ids=[-1])
    (only,) = Simulation().run([request])["bad"]
    assert only.error is not None and only.error.code == "invalid_prompt"


def test_an_exception_in_a_step_answers_its_requests_and_the_engine_goes_on() -> None:
    simulation = Simulation()
    simulation.runner.poison = "culprit"
    outputs = simulation.run([make_request("culprit", [1]), make_request("neighbour", [1])])
    assert outputs["culprit"][-1].error is not None
    assert outputs["culprit"][-1].error.code == "internal_error"
    later = simulation.run([make_request("later", [1])])
    assert len(tokens_of(later)["later"]) == 8


@pytest.mark.parametrize("num_steps", [0, 1, 3])
def test_an_abort_frees_everything_before_the_next_step(num_steps: int) -> None:
    simulation = Simulation(max_num_batched_tokens=8)
    request = make_request("gone", [1] * 20, adapter=make_ref("a"), max_tokens=30)
    simulation.core.add(request)
    for _ in range(num_steps):
        simulation.step()
    assert not simulation.core.abort("gone", epoch=0)
    assert simulation.core.abort("gone", epoch=1)
    assert not simulation.core.abort("never heard of", epoch=1)
    simulation.core.check_integrity()
    assert not simulation.core.has_work
    assert simulation.core.scheduler.num_available_pages == simulation.core.pool.num_pages


def test_a_resumed_request_continues_after_what_its_client_has() -> None:
    simulation = Simulation()
    request = make_request("resumed", [1] * 10, max_tokens=6)
    request = EngineRequest(
        **{
            **{name: getattr(request, name) for name in request.__struct_fields__},
            "delivered_token_ids": [10, 11],
        }
    )
    outputs = simulation.run([request])["resumed"]
    assert [output.index for output in outputs] == [2, 3, 4, 5]
    assert [output.token_ids for output in outputs] == [[12], [13], [14], [15]]


def test_the_oldest_request_is_not_overtaken_for_ever_by_small_ones() -> None:
    simulation = Simulation(num_pages=10, max_num_seqs=4, max_age_s=0)
    rng = random.Random(0)
    small = iter(range(10_000))

    def add_small() -> None:
        simulation.core.add(make_request(f"s{next(small)}", [1] * rng.randrange(1, 16)))

    for _ in range(4):
        add_small()
    simulation.step()
    simulation.core.add(make_request("big", [1] * 70, max_tokens=2))
    for _ in range(60):
        add_small()
        if any(output.request_id == "big" for output in simulation.step()):
            return
    raise AssertionError("the big request starved")
