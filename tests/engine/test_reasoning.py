"""What of an answer is reasoning: counted by its tokens, the same wherever they are counted."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.config import EngineConfig
from engine.core import EngineCore
from engine.messages import EngineError, EngineRequest, FinishReason, TokenOutput
from engine.reasoning import ReasoningCount
from engine.transport.failover import request_to_go_on
from engine.transport.output_stream import Adrift, OutputStream
from engine.transport.reports import record_of_stream, record_of_unsubmitted
from engine.transport.usage import UsageMeter
from lora.base_spec import BaseSpec
from tests.builders.requests import make_request
from tests.stub_engine.base import stub_base
from tests.stub_engine.clock import VirtualClock
from tests.stub_engine.loader import DelayedLoader
from tests.stub_engine.runner import HashRunner

OPEN, CLOSE = TOKENS = (3, 5)
REASONING_BASE = replace(stub_base(vocab_size=8), reasoning_token_ids=TOKENS)
some_tokens = st.lists(st.integers(0, 7), max_size=40)


def count(prompt: Sequence[int], answer: Sequence[int]) -> int:
    counted = ReasoningCount(TOKENS, prompt)
    for token_id in answer:
        counted.take(token_id)
    return counted.num_tokens


@pytest.mark.parametrize(
    ("prompt", "answer", "num"),
    [
        ([0], [1, 2, 4], 0),
        ([0], [OPEN, 1, 2, CLOSE, 4], 4),
        ([0], [1, OPEN, 1, CLOSE, 4, OPEN, CLOSE, 4], 5),
        ([0], [OPEN, 1, OPEN, 1, CLOSE, 4], 5),
        ([0], [CLOSE, 1, OPEN, 2], 2),
        ([0, OPEN], [1, 2, CLOSE, 4], 3),
        ([0, OPEN, 1], [2, 4], 2),
        ([OPEN, 1, CLOSE, 0], [1, 2], 0),
        ([CLOSE, 0, OPEN, 0], [CLOSE, 1], 1),
        ([OPEN, 1, CLOSE, OPEN], [1], 1),
        ([], [1], 0),
    ],
)
def test_it_is_from_the_opening_token_to_the_closing_one(
    prompt: list[int], answer: list[int], num: int
) -> None:
    assert count(prompt, answer) == num


def counted_again(prompt: Sequence[int], answer: Sequence[int]) -> int:
    """Token by token from the prompt's first one: another way to the same figure."""
    num, is_open = 0, False
    for position, token_id in enumerate([*prompt, *answer]):
        if is_open or token_id == OPEN:
            num += position >= len(prompt)
        is_open = token_id == OPEN or (is_open and token_id != CLOSE)
    return num


@settings(max_examples=50, deadline=None)
@given(some_tokens, some_tokens)
def test_the_count_is_that_of_a_plain_reading_of_all_tokens(
    prompt: list[int], answer: list[int]
) -> None:
    assert count(prompt, answer) == counted_again(prompt, answer)


@settings(max_examples=50, deadline=None)
@given(some_tokens, some_tokens, st.integers(0, 40))
def test_whoever_takes_over_comes_to_the_same_count(
    prompt: list[int], answer: list[int], num_delivered: int
) -> None:
    heir = ReasoningCount(TOKENS, prompt, answer[:num_delivered])
    for token_id in answer[num_delivered:]:
        heir.take(token_id)
    assert heir.num_tokens == count(prompt, answer)


def run(request: EngineRequest, base: BaseSpec = REASONING_BASE) -> list[TokenOutput]:
    """What an engine says of it: the real one, with a hash for a model."""
    config = EngineConfig(block_size=8)
    config = config.with_pool_bytes(40 * config.page_bytes(base))
    clock = VirtualClock()
    runner = HashRunner(config, base, clock)
    loader = DelayedLoader(runner.memory, clock, delay_s=lambda _: 0.0)
    core = EngineCore(config, base, runner, loader, "stub", clock=clock)
    core.add(request)
    outputs = []
    while core.has_work:
        for batch in core.step().values():
            outputs += batch.outputs
    return outputs


def said(outputs: Sequence[TokenOutput]) -> list[int]:
    return [output.num_reasoning_tokens for output in outputs]


def tokens_of(outputs: Sequence[TokenOutput]) -> list[int]:
    return [token_id for output in outputs for token_id in output.token_ids]


@pytest.mark.parametrize("prompt", [[1, 2], [1, OPEN], [OPEN, CLOSE]])
def test_an_engine_says_an_absolute_count_with_every_token(prompt: list[int]) -> None:
    outputs = run(make_request(prompt=prompt, max_tokens=60))
    answer = tokens_of(outputs)
    assert said(outputs) == [counted_again(prompt, answer[: i + 1]) for i in range(60)]
    assert 0 < said(outputs)[-1] < 60, "there is some of both"


def test_control_a_base_without_such_tokens_counts_none() -> None:
    outputs = run(make_request(prompt=[1, OPEN], max_tokens=60), stub_base(vocab_size=8))
    assert {OPEN, CLOSE} <= set(tokens_of(outputs))
    assert set(said(outputs)) == {0}


@pytest.mark.parametrize("num_delivered", [1, 17, 59])
def test_after_a_hand_over_the_count_is_that_of_one_engine(num_delivered: int) -> None:
    request = make_request(prompt=[1, 2], max_tokens=60)
    alone = run(request)
    delivered = tokens_of(alone)[:num_delivered]
    heirs = run(make_request(prompt=[1, 2], max_tokens=60, delivered=delivered))
    assert said(heirs) == said(alone)[num_delivered:]


def test_an_answer_that_fails_keeps_its_count() -> None:
    """Refused by the engine that was to go on with it."""
    request = make_request(prompt=[1, OPEN], max_tokens=4, delivered=[1, 2, CLOSE, 4])
    [refusal] = run(request)
    assert refusal.error is not None and refusal.finish_reason is FinishReason.ERROR
    assert (refusal.num_generated_tokens, refusal.num_reasoning_tokens) == (4, 3)


def output(index: int, reasoning: int, reason: FinishReason | None = None) -> TokenOutput:
    return TokenOutput(
        request_id="req_a",
        epoch=1,
        index=index,
        token_ids=[] if reason is FinishReason.ERROR else [1],
        num_prompt_tokens=3,
        num_generated_tokens=index + 1,
        num_reasoning_tokens=reasoning,
        finish_reason=reason,
        error=EngineError(code="x", message="y") if reason is FinishReason.ERROR else None,
    )


def test_checkpoints_and_ends_say_how_much_was_reasoning() -> None:
    meter = UsageMeter("engine-a")
    request = make_request(request_id="req_a", max_tokens=100)
    meter.open(msgspec.structs.replace(request, epoch=1))
    records = meter.observe([output(i, min(i + 1, 50)) for i in range(80)])
    records += meter.observe([output(80, 50, FinishReason.STOP)])
    assert [(r.num_generated_tokens, r.num_reasoning_tokens) for r in records] == [
        (64, 50),
        (81, 50),
    ]


def test_what_goes_on_elsewhere_takes_along_how_much_was_reasoning() -> None:
    request = make_request(request_id="req_a", max_tokens=100)
    stream = OutputStream(request, on_end=lambda *_: None)
    for index in range(4):
        stream.push(output(index, min(index + 1, 3)), "engine-a", now=0.0)
    stream.push(output(9, 9, FinishReason.ERROR), "engine-a", now=0.0)  # of tokens that never came
    assert record_of_stream(stream, "abort").num_reasoning_tokens == 3

    again = request_to_go_on(stream, Adrift.DIED)
    assert (len(again.delivered_token_ids), again.num_reasoning_tokens) == (4, 3)
    assert record_of_unsubmitted(again, "engine_lost").num_reasoning_tokens == 3
    heir = UsageMeter("engine-b")
    heir.open(again)
    record = heir.end("req_a", again.epoch, "abort")
    assert record is not None
    assert (record.num_generated_tokens, record.num_reasoning_tokens) == (4, 3)
