"""Golden prompts stop a candidate that has lost what it could, and none that is merely unlucky."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

import pytest
from sqlalchemy import text

from app.db import Database
from app.encryption import SealBrokenError
from app.rollouts.golden_jobs import GoldenJobs
from app.rollouts.golden_schemas import MAX_PROMPTS, GoldenPrompt
from app.rollouts.golden_sealing import GoldenSealer
from app.rollouts.jobs import RolloutJobs
from engine.messages import TRIAL_TENANT, ServiceTier
from tests.builders.clock import Clock
from tests.builders.operator import Operator
from tests.builders.queue_secret import QUEUE_SECRET
from tests.builders.stub_engine import StubEngine
from tests.builders.waiting import until
from tests.corpus.lifecycle.conftest import Version, code
from tests.corpus.lifecycle.golden.world import (
    GATE,
    GOLDEN,
    PROD,
    ROLLOUTS,
    SOAK_S,
    Replies,
    shown,
    start,
)


async def test_a_candidate_that_lost_golden_prompts_is_taken_back_by_itself(
    operator: Operator,
    versions: list[Version],
    engine: StubEngine,
    replies: Replies,
    golden: GoldenJobs,
    worker: RolloutJobs,
) -> None:
    replies.wrong[versions[1]["digest"]] = {"A number", "As JSON:"}
    rollout = await start(operator)
    assert rollout["golden"] is None

    assert await golden.work_next()

    assert (await shown(operator, rollout))["golden"] | {"asked_at": 0} == {
        "num": 3,
        "failed": [1, 2],
        "failed_before": [],
        "asked_at": 0,
        "error": None,
    }
    assert await worker.work() == 1
    done = await shown(operator, rollout)
    assert (done["state"], done["share"]) == ("rolled_back", 0)
    (gate,) = done["verdict"]["gates"]
    assert gate["gate"]["metric"] == "golden_failure_rate"
    assert (gate["candidate"]["value"], gate["baseline"]["value"]) == (2 / 3, 0.0)
    assert (await operator.done("GET", PROD))["version"] == "v1"


async def test_control_a_candidate_that_answers_as_well_goes_on_after_its_soak(
    operator: Operator,
    versions: list[Version],
    engine: StubEngine,
    replies: Replies,
    golden: GoldenJobs,
    worker: RolloutJobs,
    clock: Clock,
) -> None:
    """One that is wrong four times of five, and one that is wrong where the old one was too."""
    replies.flaky.add(versions[1]["digest"])
    for version in versions[:2]:
        replies.wrong[version["digest"]] = {"As JSON:"}
    rollout = await start(operator)
    assert await golden.work_next()
    assert not await golden.work_next(), "they are asked once"
    clock.advance(SOAK_S + 2)
    assert await worker.work() == 1
    found = await shown(operator, rollout)
    assert (found["state"], found["share"], found["golden"]["failed"]) == ("running", 25, [2])


async def test_a_candidate_that_no_engine_can_load_fails_every_golden_prompt(
    operator: Operator,
    versions: list[Version],
    engine: StubEngine,
    replies: Replies,
    golden: GoldenJobs,
) -> None:
    replies.broken[versions[1]["digest"]] = "nonfinite_logits"
    rollout = await start(operator)
    assert await golden.work_next()
    found = (await shown(operator, rollout))["golden"]
    assert (found["failed"], found["failed_before"]) == ([0, 1, 2], [])


async def test_where_an_engine_is_to_blame_nothing_is_said_and_they_are_asked_later(
    operator: Operator,
    versions: list[Version],
    engine: StubEngine,
    replies: Replies,
    golden: GoldenJobs,
    worker: RolloutJobs,
    clock: Clock,
) -> None:
    replies.broken[versions[1]["digest"]] = "engine_overloaded"
    rollout = await start(operator)
    assert await golden.work_next()
    assert (await shown(operator, rollout))["golden"] is None
    clock.advance(SOAK_S + 2)
    assert await worker.work() == 0, "its gate waits"
    replies.broken.clear()
    assert await golden.work_next()
    assert (await shown(operator, rollout))["golden"]["failed"] == []


async def test_golden_prompts_are_asked_at_the_lowest_tier_and_nobody_is_billed(
    operator: Operator,
    versions: list[Version],
    engine: StubEngine,
    replies: Replies,
    golden: GoldenJobs,
    owner: Database,
) -> None:
    await start(operator)
    assert await golden.work_next()
    assert len(replies.seen) == 2 * len(GOLDEN)
    assert {each.tenant_id for each in replies.seen} == {TRIAL_TENANT}
    assert {each.service_tier for each in replies.seen} == {ServiceTier.FLEX}
    assert {each.sampling.temperature for each in replies.seen} == {0.0}
    digests = Counter(each.adapter.digest for each in replies.seen if each.adapter is not None)
    assert digests == {version["digest"]: len(GOLDEN) for version in versions[:2]}
    async with owner.session() as session:
        assert await session.scalar(text("SELECT count(*) FROM requests")) == 0


async def test_golden_prompts_lie_in_no_table_in_clear_and_go_when_the_rollout_is_over(
    operator: Operator, versions: list[Version], owner: Database
) -> None:
    rollout = await start(operator)
    everything = text(
        "SELECT (SELECT json_agg(r)::text FROM rollouts r)"
        " || (SELECT json_agg(a)::text FROM audit_events a)"
    )
    sealed = text("SELECT sealed_golden FROM rollouts")
    async with owner.session() as session:
        kept = str(await session.scalar(everything))
        assert "France" not in kept and "Paris" not in kept
        prompts = GoldenSealer(QUEUE_SECRET).open(rollout["id"], await session.scalar(sealed))
        assert prompts[0].prompt == "The capital of France?"
    await operator.done("POST", f"{ROLLOUTS}/{rollout['id']}/cancel")
    async with owner.session() as session:
        assert await session.scalar(sealed) is None


async def test_a_rollout_that_is_resumed_is_asked_anew(
    operator: Operator,
    versions: list[Version],
    engine: StubEngine,
    replies: Replies,
    golden: GoldenJobs,
    worker: RolloutJobs,
) -> None:
    replies.wrong[versions[1]["digest"]] = {"A number"}
    rollout = await start(operator, on_fail="pause")
    assert await golden.work_next() and await worker.work() == 1
    assert (await shown(operator, rollout))["state"] == "paused"
    assert not await golden.work_next(), "nobody is asked while it is paused"
    replies.wrong.clear()
    await operator.done("POST", f"{ROLLOUTS}/{rollout['id']}/resume")
    assert await golden.work_next()
    assert (await shown(operator, rollout))["golden"]["failed"] == []


async def test_two_workers_ask_once_and_one_that_died_is_followed_by_another(
    operator: Operator,
    versions: list[Version],
    engine: StubEngine,
    replies: Replies,
    golden: GoldenJobs,
    clock: Clock,
) -> None:
    engine.pause()
    rollout = await start(operator)
    dying = asyncio.create_task(golden.work_next())
    await until(lambda: bool(replies.seen))
    assert not await golden.work_next(), "another one is at it"
    dying.cancel()
    await asyncio.gather(dying, return_exceptions=True)
    engine.resume()
    clock.advance(30)
    assert await golden.work_next()
    assert (await shown(operator, rollout))["golden"]["failed"] == []


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"golden": []}, "eval_missing"),
    ({"gates": []}, "invalid_value"),
    ({"golden": [{"prompt": "x"}]}, "invalid_value"),
    ({"golden": [{"exact": "x"}]}, "invalid_value"),
    ({"golden": [{"prompt": "x", "exact": "x", "regex": "x"}]}, "invalid_value"),
    ({"golden": [{"prompt": "x", "regex": "("}]}, "invalid_value"),
    ({"golden": [{"prompt": "x", "json_schema": {"$ref": "#"}}]}, "invalid_value"),
    ({"golden": [{"prompt": "x", "exact": "x", "max_tokens": 513}]}, "invalid_value"),
    ({"golden": [{"prompt": "x", "exact": "x"}] * (MAX_PROMPTS + 1)}, "invalid_value"),
    ({"golden": [{"prompt": "x" * 8000, "exact": "x"}]}, "context_length_exceeded"),
]


async def test_golden_prompts_that_cannot_be_asked_are_refused_and_move_nothing(
    operator: Operator, versions: list[Version]
) -> None:
    for fields, expected in REFUSED:
        body = {"alias": "prod", "to": "v2", "gates": [GATE], "golden": GOLDEN, **fields}
        refused = await operator.call("POST", ROLLOUTS, json=body)
        assert code(refused) == (400, expected), fields
    assert (await operator.done("GET", PROD))["version"] == "v1"


def test_sealed_prompts_open_for_their_rollout_alone() -> None:
    sealer = GoldenSealer(f"{QUEUE_SECRET}, another secret that is long enough")
    prompts = [GoldenPrompt.model_validate(each) for each in GOLDEN]
    sealed = sealer.seal("rol_a", prompts)
    assert sealer.open("rol_a", sealed) == prompts
    with pytest.raises(SealBrokenError):
        sealer.open("rol_b", sealed)
