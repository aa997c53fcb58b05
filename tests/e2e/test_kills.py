"""Engines, API processes and Redis are killed while 16 clients stream: the part of `make faults`
that every change has to pass.
"""

from __future__ import annotations

import asyncio

from tests.faults.campaign import Campaign
from tests.faults.clients import Clients
from tests.faults.kills import kill_apis, kill_engines, kill_redis

NUM_KILLS = 20, 5, 5
"""Of engines, API processes and Redis."""
ENDED_UNHEARD = {"not_enqueued", "queue_unavailable", "api_lost", "abort", "stop", "length"}


async def test_what_is_accepted_ends_once_whoever_is_killed(stub_campaign: Campaign) -> None:
    """Engines die at the same time as API processes, and as Redis.

    Not these two at once: what Redis loses, API processes say again, but not one that is dead.
    """
    stack, rng = stub_campaign.stack, stub_campaign.rng
    num_engines, num_apis, num_redis = NUM_KILLS
    half = num_engines // 2

    async def disturb(clients: Clients) -> None:
        await asyncio.gather(
            kill_engines(stack, clients, half, rng, together=4),
            kill_apis(stack, num_apis, rng, together=2),
        )
        await asyncio.to_thread(stack.wait_for_ledger)
        await asyncio.gather(
            kill_engines(stack, clients, num_engines - half, rng, together=4),
            kill_redis(stack, clients, num_redis, rng),
        )

    asked = stub_campaign.short_questions()
    answers = await stub_campaign.undisturbed(asked)
    verdict = await stub_campaign.run(
        asked, answers, disturb, may_cut=True, innocent=frozenset(ENDED_UNHEARD)
    )
    assert verdict.is_clean, verdict.details()
    assert verdict.moved >= num_engines and verdict.num_cut >= num_apis
