"""Redis is killed while 16 clients stream, and comes back empty: what was accepted ends once."""

from __future__ import annotations

import pytest

from tests.faults.campaign import Campaign, Recorder, num_kills, tell
from tests.faults.kills import kill_redis

pytestmark = pytest.mark.timeout(3600)


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
