"""API processes and Redis are killed while 16 clients stream: what was accepted ends once."""

from __future__ import annotations

import asyncio
import random

import pytest

from tests.faults.campaign import (
    Campaign,
    Recorder,
    all_ended,
    num_kills,
    some_short_questions,
    tell,
)
from tests.faults.clients import Clients
from tests.faults.stack import Stack

pytestmark = pytest.mark.timeout(3600)


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
    asked = some_short_questions()
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
    asked = some_short_questions()
    answers = await stub_campaign.undisturbed(asked)
    verdict = await stub_campaign.run(
        asked,
        answers,
        lambda clients: kill_redis(stack, clients, num, rng),
        innocent=frozenset({"not_enqueued", "queue_unavailable"}),
    )
    tell(record_property, verdict, f"{num} kills of Redis")
    assert verdict.moved >= num
