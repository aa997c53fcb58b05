"""A rollout climbs its ladder, and goes back by itself where the candidate is worse.

On the real registry, queue and API; the engine is a stub and the worker works when it is told to.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from app.context import AppContext
from app.rollouts.gates import Sample
from app.rollouts.jobs import RolloutJobs
from engine.messages import EngineError, EngineRequest
from tests.builders.clock import Clock
from tests.builders.operator import Operator, Tenant
from tests.builders.stub_engine import StubEngine, echo_prompt
from tests.builders.waiting import eventually
from tests.corpus.lifecycle.conftest import BOT, Ask, Version, code

ROLLOUTS, PROD = f"{BOT}/rollouts", f"{BOT}/aliases/prod"
SOAK_S = 60


async def start(operator: Operator, **fields: Any) -> dict[str, Any]:
    body = {"alias": "prod", "to": "v2", "soak_s": SOAK_S, **fields}
    return await operator.done("POST", ROLLOUTS, json=body)


async def shown(operator: Operator, rollout: dict[str, Any]) -> dict[str, Any]:
    return await operator.done("GET", f"{ROLLOUTS}/{rollout['id']}")


async def weights(operator: Operator) -> dict[str, int]:
    targets = (await operator.done("GET", PROD))["targets"]
    return {each["version"]: each["weight"] for each in targets}


async def fill(
    context: AppContext, rollout: dict[str, Any], *, num: int = 200, **worse: Any
) -> None:
    """As if so many requests for each version had been answered now; the candidate's as said."""
    at_s = context.now().timestamp()
    for number in range(num):
        for version_id, fields in (
            (rollout["from_version_id"], {}),
            (rollout["to_version_id"], worse),
        ):
            sample = {"is_error": False, "ttft_ms": 100.0 + number % 20, "num_tokens": 50, **fields}
            await context.samples.record(
                rollout["adapter_id"], "prod", Sample(at_s=at_s, version_id=version_id, **sample)
            )


async def test_a_rollout_climbs_after_each_soak_and_succeeds(
    operator: Operator, versions: list[Version], worker: RolloutJobs, clock: Clock
) -> None:
    rollout = await start(operator)
    seen = [await weights(operator)]
    for _ in range(3):
        assert await worker.work() == 0  # it has not soaked yet
        clock.advance(SOAK_S + 2)
        assert await worker.work() == 1
        seen.append(await weights(operator))

    assert seen == [
        {"v1": 95, "v2": 5},
        {"v1": 75, "v2": 25},
        {"v1": 50, "v2": 50},
        {"v2": 100},
    ]
    done = await shown(operator, rollout)
    assert (done["state"], done["share"]) == ("succeeded", 100)
    clock.advance(1000)
    assert await worker.work() == 0
    events = (await operator.done("GET", "/audit/acme", params={"limit": 100}))["data"]
    acts = [(each["actor"], each["action"]) for each in events if each["target"] == rollout["id"]]
    assert acts == [
        ("operator", "rollout.started"),
        ("worker", "rollout.advanced"),
        ("worker", "rollout.advanced"),
        ("worker", "rollout.succeeded"),
    ]


GATE = {"metric": "error_rate", "max": 0.05, "min_samples": 50}
SLOW = {"metric": "ttft_ms", "max_regression_pct": 20, "min_samples": 50}


@pytest.mark.parametrize(
    ("gate", "worse"), [(GATE, {"is_error": True}), (SLOW, {"ttft_ms": 400.0})]
)
async def test_a_worse_candidate_is_taken_back_by_itself(
    operator: Operator,
    versions: list[Version],
    worker: RolloutJobs,
    context: AppContext,
    gate: dict[str, Any],
    worse: dict[str, Any],
) -> None:
    rollout = await start(operator, gates=[gate])
    await fill(context, rollout, **worse)
    preview = await operator.done("GET", f"{ROLLOUTS}/{rollout['id']}/preview")
    assert preview["next"] == "fail" and preview["gates"][0]["verdict"] == "fail"

    assert await worker.work() == 1

    assert await weights(operator) == {"v1": 100}
    done = await shown(operator, rollout)
    assert (done["state"], done["share"]) == ("rolled_back", 0)
    assert done["verdict"]["gates"][0]["gate"]["metric"] == gate["metric"]


async def test_control_a_candidate_that_is_as_good_goes_on(
    operator: Operator,
    versions: list[Version],
    worker: RolloutJobs,
    context: AppContext,
    clock: Clock,
) -> None:
    rollout = await start(operator, gates=[GATE, SLOW])
    await fill(context, rollout)
    clock.advance(SOAK_S + 2)
    assert await worker.work() == 1
    assert await weights(operator) == {"v1": 75, "v2": 25}


async def test_without_enough_samples_a_rollout_waits(
    operator: Operator,
    versions: list[Version],
    worker: RolloutJobs,
    context: AppContext,
    clock: Clock,
) -> None:
    rollout = await start(operator, gates=[GATE])
    await fill(context, rollout, num=10, is_error=True)
    clock.advance(SOAK_S + 2)
    assert await worker.work() == 0
    preview = await operator.done("GET", f"{ROLLOUTS}/{rollout['id']}/preview")
    assert (preview["next"], preview["gates"][0]["num_candidate"]) == ("wait", 10)
    assert await weights(operator) == {"v1": 95, "v2": 5}


async def test_samples_of_an_earlier_step_do_not_count(
    operator: Operator,
    versions: list[Version],
    worker: RolloutJobs,
    context: AppContext,
    clock: Clock,
) -> None:
    rollout = await start(operator, gates=[GATE])
    await fill(context, rollout)
    clock.advance(SOAK_S + 2)
    assert await worker.work() == 1
    clock.advance(SOAK_S + 2)
    assert await worker.work() == 0
    assert await weights(operator) == {"v1": 75, "v2": 25}


async def test_a_rollout_that_is_to_be_looked_at_pauses_instead(
    operator: Operator, versions: list[Version], worker: RolloutJobs, context: AppContext
) -> None:
    rollout = await start(operator, gates=[GATE], on_fail="pause")
    await fill(context, rollout, is_error=True)
    assert await worker.work() == 1
    paused = await shown(operator, rollout)
    assert paused["state"] == "paused" and paused["verdict"] is not None
    assert await weights(operator) == {"v1": 95, "v2": 5}
    assert await worker.work() == 0


async def test_a_paused_rollout_stands_still_and_begins_its_step_anew(
    operator: Operator, versions: list[Version], worker: RolloutJobs, clock: Clock
) -> None:
    rollout = await start(operator)
    path = f"{ROLLOUTS}/{rollout['id']}"
    await operator.done("POST", f"{path}/pause")
    clock.advance(10 * SOAK_S)
    assert await worker.work() == 0
    await operator.done("POST", f"{path}/resume")
    assert await worker.work() == 0
    clock.advance(SOAK_S + 2)
    assert await worker.work() == 1
    assert await weights(operator) == {"v1": 75, "v2": 25}


@pytest.mark.parametrize(("verb", "expected"), [("promote", {"v2": 100}), ("cancel", {"v1": 100})])
async def test_an_operator_ends_a_rollout_either_way(
    operator: Operator,
    versions: list[Version],
    worker: RolloutJobs,
    verb: str,
    expected: dict[str, int],
) -> None:
    rollout = await start(operator)
    path = f"{ROLLOUTS}/{rollout['id']}"
    await operator.done("POST", f"{path}/{verb}")
    assert await weights(operator) == expected
    for again in ("promote", "cancel", "pause", "resume"):
        assert code(await operator.call("POST", f"{path}/{again}")) == (409, "rollout_over")


async def test_only_the_rollout_moves_its_alias(
    operator: Operator, versions: list[Version]
) -> None:
    await start(operator)
    for method, path, body in (
        ("PUT", PROD, {"version": "v3"}),
        ("POST", f"{PROD}/rollback", {}),
        ("DELETE", PROD, None),
        ("POST", ROLLOUTS, {"alias": "prod", "to": "v3"}),
        ("DELETE", f"{BOT}/versions/v2", None),
    ):
        refused = await operator.call(method, path, json=body)
        assert code(refused) == (409, "rollout_in_progress"), (method, path)
    assert await weights(operator) == {"v1": 95, "v2": 5}


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"ladder": [5, 5, 100]}, 400),
        ({"ladder": [50, 25, 100]}, 400),
        ({"ladder": [5, 50]}, 400),
        ({"gates": [{"metric": "error_rate"}]}, 400),
        ({"gates": [{"metric": "error_rate", "max": 1, "max_regression_pct": 1}]}, 400),
        ({"gates": [{"metric": "length_drift", "max": 1}]}, 400),
        ({"gates": [{"metric": "mood", "max": 1}]}, 400),
        ({"to": "v1"}, 409),
        ({"to": "v9"}, 404),
        ({"alias": "nothing"}, 404),
    ],
)
async def test_a_rollout_that_cannot_be_is_refused_and_moves_nothing(
    operator: Operator, versions: list[Version], fields: dict[str, Any], expected: int
) -> None:
    body = {"alias": "prod", "to": "v2", **fields}
    refused = await operator.call("POST", ROLLOUTS, json=body)
    assert refused.status_code == expected, refused.text
    assert await weights(operator) == {"v1": 100}


async def test_a_rollout_whose_versions_may_not_be_named_any_more_waits_for_somebody(
    operator: Operator, versions: list[Version], worker: RolloutJobs, clock: Clock
) -> None:
    rollout = await start(operator, soak_s=2 * 86_400)
    day = clock.now().date().isoformat()
    clock.advance(-86_400)
    await operator.done("POST", f"{BOT}/versions/v2/deprecate", json={"date": day})
    clock.advance(4 * 86_400)
    assert await worker.work() == 1
    paused = await shown(operator, rollout)
    assert (paused["state"], paused["verdict"]["code"]) == ("paused", "version_not_active")


async def test_two_workers_move_a_rollout_once(
    operator: Operator, versions: list[Version], worker: RolloutJobs, clock: Clock
) -> None:
    rollout = await start(operator)
    clock.advance(SOAK_S + 2)
    assert sum(await asyncio.gather(worker.work(), worker.work())) == 1
    assert (await shown(operator, rollout))["step"] == 1


@pytest.fixture
def engine(redis_url: str, versions: list[Version]) -> Iterator[StubEngine]:
    """Answers everybody but v2's requests, which it fails."""
    broken = versions[1]["digest"]

    def reply(request: EngineRequest) -> list[int] | EngineError:
        if request.adapter is not None and request.adapter.digest == broken:
            return EngineError(code="nonfinite_logits", message="broken")
        return echo_prompt(request)

    with StubEngine(redis_url, reply=reply) as running:
        yield running


async def test_a_candidate_that_fails_real_requests_is_taken_back(
    operator: Operator,
    versions: list[Version],
    engine: StubEngine,
    worker: RolloutJobs,
    context: AppContext,
    ask: Ask,
) -> None:
    """From HTTP through the queue to the gate and back to the alias."""
    gate = {**GATE, "min_samples": 20}
    rollout = await start(operator, ladder=[50, 100], gates=[gate])
    answers: list[httpx.Response] = []
    while sum(answer.status_code == 500 for answer in answers) < 25:
        answers.append(await ask())
    assert {answer.status_code for answer in answers} == {200, 500}

    async def has_samples() -> bool:
        samples = await context.samples.read(rollout["adapter_id"], "prod")
        return len(samples) == len(answers)

    await eventually(has_samples)
    assert await worker.work() == 1
    assert (await shown(operator, rollout))["state"] == "rolled_back"
    assert {(await ask()).headers["x-adapter-version"] for _ in range(10)} == {"v1"}


async def test_what_is_measured_is_how_the_request_went_and_no_word_of_it(
    operator: Operator,
    versions: list[Version],
    context: AppContext,
    acme: Tenant,
    ask: Ask,
    redis_url: str,
) -> None:
    targets = [{"version": "v1", "weight": 50}, {"version": "v3", "weight": 50}]
    moved = await operator.done("PUT", PROD, json={"targets": targets})
    with StubEngine(redis_url):
        answer = await ask(prompt="canary-of-the-prompt", user="canary-of-the-user")

    async def has_sample() -> bool:
        return bool(await context.samples.read(moved["adapter_id"], "prod"))

    await eventually(has_sample)
    (sample,) = await context.samples.read(moved["adapter_id"], "prod")
    assert sample.num_tokens == answer.json()["usage"]["completion_tokens"]
    assert sample.ttft_ms is not None and sample.ttft_ms > 0
    assert sample.is_json is False and not sample.is_error
    assert "canary" not in repr(sample)
