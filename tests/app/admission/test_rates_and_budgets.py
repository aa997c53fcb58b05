"""Rates by the minute, amounts by day and month: nobody passes one, and is told which it was."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator, Sequence
from datetime import UTC, datetime
from typing import Any

import pytest
import redis

from app.admission.headers import go_duration, ratelimit_headers
from app.admission.messages import Figures, Prices, TenantSpend
from app.admission.service import Admission
from app.batches.patience import Patience
from app.errors import ApiError
from app.plans.limits import Limit
from engine.transport import keys
from tests.builders.admissions import (
    admit,
    admit_ask,
    key_limits,
    make_ask,
    nothing_spent,
    tenant_limits,
)

BUCKET_MS = 2000
PRICES = Prices(input=10**9, cached=10**8, output=2 * 10**9)  # one and two units a million


@pytest.fixture
async def admission(redis_url: str) -> AsyncIterator[Admission]:
    service = Admission(redis_url, nothing_spent)
    yield service
    await service.close()


@pytest.fixture
def server(redis_url: str) -> Iterator[redis.Redis]:
    with redis.Redis.from_url(redis_url, decode_responses=True) as client:
        yield client


async def refused(
    admission: Admission, request_id: str, limits: Sequence[Limit] = (), **fields: Any
) -> ApiError:
    with pytest.raises(ApiError) as refusal:
        await admit(admission, request_id, limits, **fields)
    assert refusal.value.status == 429
    return refusal.value


def age(server: redis.Redis, subject: str, seconds: int) -> None:
    """Let time pass for what was counted in a minute's window."""
    name = f"{keys.PREFIX}window:{subject}"
    for field, amount in server.hgetall(name).items():
        server.hdel(name, field)
        server.hset(name, f"{field[0]}{int(field[1:]) - seconds * 1000 // BUCKET_MS}", amount)


async def test_requests_of_any_minute_stay_within_the_limit(
    admission: Admission, server: redis.Redis
) -> None:
    limits = tenant_limits(requests_per_minute=2)
    await admit(admission, "r1", limits)
    age(server, "tenant:ten_a", 30)
    await admit(admission, "r2", limits)
    error = await refused(admission, "r3", limits)
    assert (error.code, error.type) == ("rate_limit_exceeded", "requests")
    assert 25 <= int(error.headers["retry-after"]) <= 33  # when the first has left the window
    assert error.headers["x-ratelimit-remaining-requests"] == "0"
    age(server, "tenant:ten_a", 34)
    await admit(admission, "r4", limits)
    await refused(admission, "r5", limits)


async def test_tokens_are_reserved_with_what_may_be_generated(admission: Admission) -> None:
    limits = tenant_limits(tokens_per_minute=25)
    await admit(admission, "r1", limits, tokens=10)
    await admit(admission, "r2", limits, tokens=15)
    error = await refused(admission, "r3", limits, tokens=1)
    assert (error.code, error.type) == ("rate_limit_exceeded", "tokens")
    assert 1 <= int(error.headers["retry-after"]) <= 60


async def test_what_can_never_be_admitted_is_not_worth_a_retry(admission: Admission) -> None:
    """No date is told, by which a batch's line would wait for it, and all its batch."""
    kinds = ("tokens_per_minute", "tokens_per_day", "tokens_per_month", "cost_micros_per_month")
    for kind in kinds:  # ten tokens for twenty millionths
        over, fits = tenant_limits(**{kind: 9}), tenant_limits(**{kind: 20})
        error = await refused(admission, kind, over, tokens=10, prices=PRICES)
        assert error.code == "request_exceeds_limit"
        assert error.headers["x-should-retry"] == "false" and "retry-after" not in error.headers
        assert error.details["reset_at"] is None
        assert (
            Patience(datetime.max.replace(tzinfo=UTC)).wait_after(error, datetime.now(UTC)) is None
        )
        await admit(admission, f"fits-{kind}", fits, tenant_id=kind, tokens=10, prices=PRICES)


async def test_null_is_no_limit_and_0_lets_nothing_pass(admission: Admission) -> None:
    for kind in ("requests_per_minute", "tokens_per_minute", "tokens_per_day", "concurrency"):
        await admit(admission, f"none-{kind}", tenant_limits(**{kind: None}))
        await refused(admission, f"zero-{kind}", tenant_limits(**{kind: 0}))


async def test_a_spent_budget_is_told_with_its_end_and_without_a_retry(
    redis_url: str, admission: Admission
) -> None:
    month = f"{datetime.now(UTC):%Y%m}"

    async def load(tenant_id: str) -> TenantSpend:
        figures = [Figures(subject="tenant:ten_b", version=3, amounts={f"m{month}": 95})]
        return TenantSpend(tenant_id=tenant_id, version=3, figures=figures, open=[])

    spender = Admission(redis_url, load)
    limits = tenant_limits("ten_b", tokens_per_month=100)
    error = await refused(spender, "r1", limits, tenant_id="ten_b", tokens=6)
    assert error.code == error.type == "insufficient_quota"
    assert error.headers["x-should-retry"] == "false" and "retry-after" not in error.headers
    assert "x-ratelimit-reset-tokens" in error.headers
    limit = error.details["limit"]
    assert (limit["kind"], limit["id"]) == ("tokens_per_month", "ten_b")
    assert (limit["limit"], limit["used"], limit["requested"]) == (100, 95, 6)
    ends_at = datetime.fromisoformat(error.details["reset_at"])
    assert (ends_at.day, ends_at.hour) == (1, 0) and ends_at > datetime.now(UTC)
    await admit(spender, "r2", limits, tenant_id="ten_b", tokens=5)
    await spender.close()


async def test_a_budget_that_only_running_requests_hold_is_worth_a_retry(
    admission: Admission,
) -> None:
    limits = tenant_limits(tokens_per_month=100)
    await admit(admission, "r1", limits, tokens=95)
    error = await refused(admission, "r2", limits, tokens=6)
    assert (error.code, error.headers["retry-after"]) == ("rate_limit_exceeded", "1")


async def test_twenty_at_once_on_two_processes_pass_a_budget_of_five_five_times(
    redis_url: str,
) -> None:
    processes = [Admission(redis_url, nothing_spent) for _ in range(2)]
    limits = tenant_limits(tokens_per_month=5 * 20 + 19)
    outcomes = await asyncio.gather(
        *(admit(processes[i % 2], f"r{i}", limits, tokens=20) for i in range(20)),
        return_exceptions=True,
    )
    assert sum(not isinstance(outcome, Exception) for outcome in outcomes) == 5
    for process in processes:
        await process.close()


async def test_money_is_counted_in_billionths(admission: Admission) -> None:
    limits = tenant_limits(cost_micros_per_month=5)
    await admit(admission, "r1", limits, tokens=2, prices=PRICES)  # 4 millionths
    error = await refused(admission, "r2", limits, tokens=1, prices=PRICES)
    limit = error.details["limit"]
    assert (limit["limit"], limit["used"], limit["requested"]) == (5, 4, 2)
    assert Prices(input=1, cached=1, output=1).cost(num_input=1, num_cached=0, num_output=0) == 1


async def test_of_several_limits_the_one_that_lasts_longest_is_told(admission: Admission) -> None:
    limits = [
        *tenant_limits(requests_per_minute=1, concurrency=1),
        *key_limits(tokens_per_day=10),
    ]
    await admit(admission, "r1", limits, tokens=1)
    error = await refused(admission, "r2", limits, tokens=10)
    assert error.details["limit"]["kind"] == "requests_per_minute"


async def test_dry_run_and_soft_limits_refuse_nobody_and_say_so(admission: Admission) -> None:
    limits = tenant_limits(soft_tokens_per_month=5, dry_run={"requests_per_minute": 0})
    decision = await admit(admission, "r1", limits, tokens=10)
    found = {limit.mode: check.is_over for limit, check in decision.checked()}
    assert found == {"soft": True, "dry_run": True}
    assert ratelimit_headers(decision) == {}


async def test_headers_tell_of_the_limit_with_least_room(admission: Admission) -> None:
    limits = [
        *tenant_limits(requests_per_minute=10, tokens_per_minute=100),
        *key_limits(requests_per_minute=3, tokens_per_day=500),
    ]
    headers = ratelimit_headers(await admit(admission, "r1", limits, tokens=40))
    assert headers["x-ratelimit-limit-requests"] == "3"
    assert headers["x-ratelimit-remaining-requests"] == "2"
    assert headers["x-ratelimit-limit-tokens"] == "100"
    assert headers["x-ratelimit-remaining-tokens"] == "60"
    assert headers["x-ratelimit-reset-requests"].startswith("1m")


@pytest.mark.parametrize(
    ("ms", "text"),
    [
        (12, "12ms"),
        (1000, "1s"),
        (1500, "1.5s"),
        (360_000, "6m0s"),
        (3_600_000, "1h0m0s"),
        (90_061_000, "25h1m1s"),
    ],
)
def test_durations_are_written_as_go_writes_them(ms: int, text: str) -> None:
    assert go_duration(ms) == text


async def test_a_refusal_is_kept_for_whoever_asks_why(admission: Admission) -> None:
    limits = tenant_limits(requests_per_minute=0)
    await refused(admission, "req_x", limits)
    kept = await admission.find_refusal("req_x")
    assert kept is not None and kept.ask.limits[0].limit == 0 and kept.verdict.checks[0].is_over
    assert await admission.find_refusal("req_y") is None


async def test_refusals_of_a_tenant_do_not_pile_up(
    admission: Admission, server: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("app.admission.service.MAX_REFUSALS", 3)
    for i in range(8):
        await refused(admission, f"req_{i}", tenant_limits(requests_per_minute=0))
    kept = sorted(server.keys(f"{keys.PREFIX}refusal:*"))
    assert kept == [keys.refusal(f"req_{i}") for i in (5, 6, 7)]
    assert all(server.pttl(name) > 0 for name in server.keys("*"))


async def test_what_a_cancelled_request_reserved_is_free_again(admission: Admission) -> None:
    limits = tenant_limits(tokens_per_month=10)
    ask = make_ask(admission, "r1", limits)
    await admit_ask(admission, ask)
    await admission.release(ask, is_accepted=False)
    ask = make_ask(admission, "r2", limits)
    await admit_ask(admission, ask)
    await admission.release(ask, is_accepted=True)  # the control: the ledger will settle this one
    await refused(admission, "r3", limits)
