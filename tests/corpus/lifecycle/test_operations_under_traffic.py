"""Swaps, roll-backs and deletions while requests run: nobody gets another version's answer.

A request carries the digest that its alias meant when it was admitted, and its text is what that
digest alone generates. TEST_FAULTS=soak: 1,000 operations; else 100.
"""

from __future__ import annotations

import os
import random
from collections.abc import AsyncIterator
from dataclasses import replace

import pytest

from app.adapters.jobs import JobRunner
from app.adapters.residency import QueueEngines
from app.context import AppContext
from engine.messages import AdapterRef, EngineError
from engine.transport.levers import EngineLevers
from lora.store import AdapterMissingError
from tests.builders.operator import Operator
from tests.builders.queue_secret import QUEUE_SECRET
from tests.builders.stub_loop import StubLoop
from tests.corpus.lifecycle.conftest import Ask, Push
from tests.corpus.operations import (
    NUM_LIVE,
    Answer,
    Hand,
    History,
    operate_under_traffic,
    text_of,
)
from tests.stub_engine.runner import generate

NUM_OPERATIONS = 1_000 if os.environ.get("TEST_FAULTS") == "soak" else 100
MAX_TOKENS = 12
PROMPT = "Hello"


@pytest.fixture
async def levers(redis_url: str) -> AsyncIterator[EngineLevers]:
    opened = EngineLevers(redis_url, secret=QUEUE_SECRET)
    yield opened
    await opened.close()


@pytest.fixture
def jobs(jobs: JobRunner, levers: EngineLevers) -> JobRunner:
    return replace(jobs, engines=QueueEngines(levers))


def solo_text(context: AppContext, digest: str) -> str:
    """What one adapter alone generates, as a client is shown it."""
    prompt = context.tokenizer.encode_prompt(PROMPT)
    tokens = generate(prompt, digest, MAX_TOKENS, context.base.vocab_size)
    return text_of(context, len(prompt), tokens)


def missing(context: AppContext, ref: AdapterRef) -> EngineError | None:
    """The stub's adapters have no bytes, but it loads none that the store does not have."""
    try:
        context.store.fetch(ref.locator)
    except AdapterMissingError:
        return EngineError(code="adapter_missing", message="The adapter's files cannot be found.")
    return None


@pytest.mark.timeout(0)
async def test_no_answer_is_another_versions_while_versions_are_swapped_and_deleted(
    operator: Operator, push: Push, engine: StubLoop, ask: Ask, context: AppContext
) -> None:
    solo: dict[str, str] = {}

    def known(digest: str) -> str:
        if digest not in solo:
            solo[digest] = solo_text(context, digest)
        return solo[digest]

    history = History(known)
    engine.loader.fails = lambda ref: missing(context, ref)
    hand = Hand(operator, push, history, random.Random(7))
    await operate_under_traffic(
        hand, ask, history, num=NUM_OPERATIONS, prompt=PROMPT, max_tokens=MAX_TOKENS
    )

    assert history.wrongs() == []
    assert set(history.refusals) <= {"adapter_deleted", "adapter_missing"}, history.refusals
    assert len(history.answers) > NUM_OPERATIONS / 4
    assert len({answer.digest for answer in history.answers}) > NUM_LIVE
    engine.core.check_integrity()
    held = {digest for _, digest in engine.core.residency.ready_keys()}
    live = {version["digest"] for version in hand.live.values()}
    assert held <= live, "an engine holds what was deleted"


def test_control_an_answer_of_another_version_and_one_that_was_not_meant_are_noticed() -> None:
    history = History(lambda digest: f"text of {digest}")
    history.move(0.0, frozenset({"a"}))
    history.move(10.0, frozenset({"b"}))
    history.move(20.0, frozenset({"c"}))
    right = Answer(1.0, 2.0, "a", "text of a")
    during = Answer(10.5, 10.9, "a", "text of a")  # the move to b may not have been done yet
    history.answers = [right, during]
    assert history.wrongs() == []
    history.answers = [replace(right, text="text of b"), replace(right, digest="c")]
    assert len(history.wrongs()) == 3
    history.answers = [Answer(21.0, 22.0, "a", "text of a")]
    assert history.wrongs() == ["a was not meant at the time"]
