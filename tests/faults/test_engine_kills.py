"""Engines are killed, frozen or told to end while 16 clients stream: nothing is lost or changed."""

from __future__ import annotations

import asyncio
import random
import signal

import pytest

from tests.faults.campaign import Campaign, Recorder, num_kills, tell
from tests.faults.clients import Clients
from tests.faults.kills import all_ended, kill_engines
from tests.faults.stack import Engine, Stack
from tests.stub_engine.base import stub_base
from tests.stub_engine.runner import generate

pytestmark = pytest.mark.timeout(3600)

TOGETHER = 4
"""Of eight engines: a request is on one of them."""
GAP_S = 2.0
BUSY_MACHINE_S = 2.0
NUM_FREEZES = 2
FROZEN_S = 3.0


async def test_streams_survive_engines_that_are_killed(
    stub_campaign: Campaign, record_property: Recorder
) -> None:
    num, stack, rng = num_kills("engine"), stub_campaign.stack, stub_campaign.rng
    asked = stub_campaign.short_questions()
    answers = await stub_campaign.undisturbed(asked)
    for question in asked:
        digest = stub_campaign.digests[question.model]
        whole = generate(question.prompt, digest, question.max_tokens, stub_base().vocab_size)
        eos = stub_base().eos_token_ids[0]
        num_tokens = whole.index(eos) + 1 if eos in whole else len(whole)
        assert answers[question].num_tokens == num_tokens
    verdict = await stub_campaign.run(
        asked, answers, lambda clients: kill_engines(stack, clients, num, rng, together=TOGETHER)
    )
    tell(record_property, verdict, f"{num} kills of engines", num_kills=num)
    assert not verdict.refused, "there are engines left"
    assert verdict.moved >= num
    assert verdict.gap_s(1.0) < GAP_S + BUSY_MACHINE_S


async def freeze_a_busy_one(stack: Stack, rng: random.Random) -> Engine:
    """Heartbeats are a little old: whoever has nothing any more goes on."""
    while True:
        await asyncio.sleep(rng.uniform(0.05, 0.4))
        [victim] = await asyncio.to_thread(stack.busiest, 1)
        victim.process.send_signal(signal.SIGSTOP)
        if await asyncio.to_thread(stack.num_leased, victim) > 0:
            return victim
        victim.process.send_signal(signal.SIGCONT)


async def freeze_engines(stack: Stack, clients: Clients, num: int, rng: random.Random) -> None:
    """They wake with requests that others run by then."""
    for _ in range(num):
        victim = await freeze_a_busy_one(stack, rng)
        in_flight = set(clients.in_flight)
        await asyncio.sleep(FROZEN_S)
        victim.process.send_signal(signal.SIGCONT)
        await all_ended(clients, in_flight)
        assert victim.process.poll() is None, "it goes on with other requests"


async def test_streams_survive_engines_that_freeze_and_come_back(
    stub_campaign: Campaign, record_property: Recorder
) -> None:
    stack, rng = stub_campaign.stack, stub_campaign.rng
    asked = stub_campaign.short_questions()
    answers = await stub_campaign.undisturbed(asked)
    verdict = await stub_campaign.run(
        asked, answers, lambda clients: freeze_engines(stack, clients, NUM_FREEZES, rng)
    )
    tell(record_property, verdict, f"{NUM_FREEZES} engines frozen")
    assert verdict.moved >= NUM_FREEZES


async def restart_engines(stack: Stack, clients: Clients) -> None:
    """One after the other, as in a roll-out."""
    for engine in stack.engines:
        leaving = engine.process
        leaving.terminate()
        engine.launch()
        await asyncio.to_thread(stack.wait_for, [engine])
        await asyncio.to_thread(leaving.wait, 30)
        assert leaving.returncode == 0


async def test_a_roll_out_of_engines_changes_no_stream(
    stub_campaign: Campaign, record_property: Recorder
) -> None:
    stack = stub_campaign.stack
    asked = stub_campaign.short_questions()
    answers = await stub_campaign.undisturbed(asked)
    verdict = await stub_campaign.run(
        asked, answers, lambda clients: restart_engines(stack, clients)
    )
    tell(record_property, verdict, f"{len(stack.engines)} engines restarted")
