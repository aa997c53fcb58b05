"""API processes are killed while 16 clients stream: what they had accepted ends once."""

from __future__ import annotations

import pytest

from tests.faults.campaign import Campaign, Recorder, num_kills, tell
from tests.faults.kills import kill_apis

pytestmark = pytest.mark.timeout(3600)

TOGETHER = 2
"""Of four API processes; the others answer."""


async def test_what_a_killed_api_process_had_accepted_ends_once(
    stub_campaign: Campaign, record_property: Recorder
) -> None:
    num, stack, rng = num_kills("api"), stub_campaign.stack, stub_campaign.rng
    asked = stub_campaign.short_questions()
    answers = await stub_campaign.undisturbed(asked)
    verdict = await stub_campaign.run(
        asked,
        answers,
        lambda _: kill_apis(stack, num, rng, together=TOGETHER),
        may_cut=True,
        innocent=frozenset({"not_enqueued", "api_lost", "abort", "stop", "length"}),
    )
    tell(record_property, verdict, f"{num} kills of API processes", num_kills=num)
    assert verdict.num_cut >= num, "the kills met streams"
