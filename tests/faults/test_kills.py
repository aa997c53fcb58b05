"""Processes are killed while 16 clients stream: nothing is lost, doubled or changed."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable

import pytest

from tests.builders.waiting import until
from tests.faults.campaign import Campaign, num_kills
from tests.faults.clients import Clients, Question, some_questions
from tests.faults.conftest import VERDICT
from tests.faults.history import Verdict
from tests.faults.stack import Stack
from tests.stub_engine.base import stub_base
from tests.stub_engine.runner import generate

pytestmark = pytest.mark.timeout(3600)

NUM_QUESTIONS = 24
MAX_TOKENS = (20, 60)
AT_A_TIME = 2
"""Of four engines: a request is on one of them."""
ALL_MOVED_S = 60.0
GAP_S = 2.0
BUSY_MACHINE_S = 2.0

Recorder = Callable[[str, object], None]


def questions() -> list[Question]:
    return some_questions(NUM_QUESTIONS, MAX_TOKENS, random.Random(1))


def tell(record_property: Recorder, verdict: Verdict, kills: str) -> None:
    record_property(VERDICT, verdict.summary(kills))
    assert verdict.is_clean, verdict.details()


async def all_ended(clients: Clients, in_flight: set[int]) -> None:
    """A request that sees two engines die is refused, and rightly so."""
    await until(lambda: in_flight.isdisjoint(clients.in_flight), timeout_s=ALL_MOVED_S)


async def kill_engines(stack: Stack, clients: Clients, num: int, rng: random.Random) -> None:
    for _ in range(num // AT_A_TIME):
        await asyncio.sleep(rng.uniform(0.05, 0.4))
        victims = await asyncio.to_thread(stack.busiest, AT_A_TIME)
        for engine in victims:
            await asyncio.to_thread(engine.kill)
        in_flight = set(clients.in_flight)
        for engine in victims:
            engine.launch()
        await all_ended(clients, in_flight)
        await asyncio.to_thread(stack.wait_for, victims)


async def test_streams_survive_engines_that_are_killed(
    stub_campaign: Campaign, record_property: Recorder
) -> None:
    num, stack, rng = num_kills("engine"), stub_campaign.stack, stub_campaign.rng
    asked = questions()
    answers = await stub_campaign.undisturbed(asked)
    for question in asked:
        whole = generate(question.prompt, None, question.max_tokens, stub_base().vocab_size)
        eos = stub_base().eos_token_ids[0]
        num_tokens = whole.index(eos) + 1 if eos in whole else len(whole)
        assert answers[question].num_tokens == num_tokens
    verdict = await stub_campaign.run(
        asked, answers, lambda clients: kill_engines(stack, clients, num, rng)
    )
    tell(record_property, verdict, f"{num} kills of engines")
    assert verdict.moved >= num
    assert verdict.longest_gap_s < GAP_S + BUSY_MACHINE_S


async def kill_apis(stack: Stack, clients: Clients, num: int, rng: random.Random) -> None:
    """One of two at a time; the other answers."""
    for _ in range(num):
        await asyncio.sleep(rng.uniform(0.5, 1.0))
        victim = rng.choice(stack.apis)
        await asyncio.to_thread(victim.kill)
        await asyncio.to_thread(victim.start)


async def test_what_a_killed_api_process_had_accepted_ends_once(
    stub_campaign: Campaign, record_property: Recorder
) -> None:
    num, stack, rng = num_kills("api"), stub_campaign.stack, stub_campaign.rng
    asked = questions()
    answers = await stub_campaign.undisturbed(asked)
    verdict = await stub_campaign.run(
        asked,
        answers,
        lambda clients: kill_apis(stack, clients, num, rng),
        may_cut=True,
        innocent=frozenset({"not_enqueued", "api_lost", "abort", "stop", "length"}),
    )
    tell(record_property, verdict, f"{num} kills of API processes")


async def kill_redis(stack: Stack, clients: Clients, num: int, rng: random.Random) -> None:
    """It comes back empty; new work is refused meanwhile, what runs goes on."""
    for _ in range(num):
        await asyncio.sleep(rng.uniform(0.2, 0.6))
        in_flight = set(clients.in_flight)
        await asyncio.to_thread(stack.kill_valkey, rng.uniform(0.0, 0.5))
        await asyncio.to_thread(stack.wait_for, stack.engines)
        await all_ended(clients, in_flight)


async def test_streams_survive_a_redis_that_is_killed_and_comes_back_empty(
    stub_campaign: Campaign, record_property: Recorder
) -> None:
    num, stack, rng = num_kills("redis"), stub_campaign.stack, stub_campaign.rng
    asked = questions()
    answers = await stub_campaign.undisturbed(asked)
    verdict = await stub_campaign.run(
        asked,
        answers,
        lambda clients: kill_redis(stack, clients, num, rng),
        innocent=frozenset({"not_enqueued", "queue_unavailable"}),
    )
    tell(record_property, verdict, f"{num} kills of Redis")
    assert verdict.moved >= num
