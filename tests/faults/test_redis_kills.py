"""Redis is killed while 16 clients stream, and comes back empty: what was accepted ends once."""

from __future__ import annotations

import asyncio
import random

import pytest

from tests.faults.campaign import (
    Campaign,
    Recorder,
    all_ended,
    num_kills,
    tell,
)
from tests.faults.clients import Clients
from tests.faults.stack import Stack

pytestmark = pytest.mark.timeout(3600)


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
    asked = stub_campaign.short_questions()
    answers = await stub_campaign.undisturbed(asked)
    verdict = await stub_campaign.run(
        asked,
        answers,
        lambda clients: kill_redis(stack, clients, num, rng),
        innocent=frozenset({"not_enqueued", "queue_unavailable"}),
    )
    tell(record_property, verdict, f"{num} kills of Redis", num_kills=num)
    assert verdict.moved >= num
