"""API processes are killed while 16 clients stream: what they had accepted ends once."""

from __future__ import annotations

import asyncio
import random

import pytest

from tests.faults.campaign import (
    Campaign,
    Recorder,
    at_a_time,
    num_kills,
    tell,
)
from tests.faults.clients import Clients
from tests.faults.stack import Stack

pytestmark = pytest.mark.timeout(3600)

TOGETHER = 2
"""Of four API processes; the others answer."""


async def kill_apis(stack: Stack, clients: Clients, num: int, rng: random.Random) -> None:
    for together in at_a_time(num, TOGETHER):
        await asyncio.sleep(rng.uniform(0.3, 0.8))
        victims = rng.sample(stack.apis, together)
        for api in victims:
            await asyncio.to_thread(api.kill)
        await asyncio.gather(*(asyncio.to_thread(api.start) for api in victims))


async def test_what_a_killed_api_process_had_accepted_ends_once(
    stub_campaign: Campaign, record_property: Recorder
) -> None:
    num, stack, rng = num_kills("api"), stub_campaign.stack, stub_campaign.rng
    asked = stub_campaign.short_questions()
    answers = await stub_campaign.undisturbed(asked)
    verdict = await stub_campaign.run(
        asked,
        answers,
        lambda clients: kill_apis(stack, clients, num, rng),
        may_cut=True,
        innocent=frozenset({"not_enqueued", "api_lost", "abort", "stop", "length"}),
    )
    tell(record_property, verdict, f"{num} kills of API processes", num_kills=num)
    assert verdict.num_cut >= num, "the kills met streams"
