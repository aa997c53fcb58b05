"""Usage is the same before and after it is rolled up, and a change is never lost between."""

from __future__ import annotations

import asyncio
import random
from collections import defaultdict
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import msgspec

from app.db import billing_scope
from app.requests.repository import LedgerRepository
from app.requests.service import write_records
from app.usage.jobs import UsageJobs
from app.usage.repository import MEASURES, UsageRow, read_usage
from tests.builders.clock import Clock
from tests.builders.ledger import Ledger
from tests.builders.usage import make_record, new_request

DAY = timedelta(days=1)
GROUPS = ("tenant", "key", "adapter", "version", "base", "tier")
STALE = "SELECT * FROM usage_stale_hours"
HOURS = "SELECT * FROM usage_hours"


async def usage(ledger: Ledger, noon: datetime, width: timedelta) -> list[UsageRow]:
    async with ledger.database.session() as session:
        await billing_scope(session)
        since = noon.replace(hour=0)
        return await read_usage(
            session, since, since + 2 * DAY, width, GROUPS, tenant_id=None, limit=10_000
        )


async def fill(ledger: Ledger, noon: datetime, rng: random.Random, num: int) -> None:
    requests, records = [], []
    for i in range(num):
        request = replace(
            new_request(
                f"req_{noon:%H}_{i}",
                tenant_id=rng.choice(("ten_a", "ten_b")),
                accepted_at=noon + timedelta(minutes=rng.uniform(0, 180)),
            ),
            key_id=rng.choice(("key_a", "key_b")),
            adapter_id=rng.choice((None, "adp_a")),
            base_model_id="base",
            service_tier=rng.choice(("default", "flex")),
            num_prompt_tokens=rng.randrange(1, 50),
            is_first_choice=rng.random() < 0.8,
        )
        requests.append(request)
        records.append(
            msgspec.structs.replace(
                make_record(
                    request.request_id,
                    generated=rng.choice((0, 1, 40)),
                    tenant_id=request.tenant_id,
                ),
                num_prompt_tokens=request.num_prompt_tokens,
                num_cached_tokens=rng.randrange(0, 60),
                queue_ms=rng.randrange(99),
            )
        )
    await ledger.accept(*requests)
    await ledger.write(*records)


async def test_usage_is_the_same_before_and_after_it_is_rolled_up(
    ledger: Ledger, usage_jobs: UsageJobs, noon: datetime
) -> None:
    rng = random.Random(3)
    await fill(ledger, noon, rng, 40)
    widths = (timedelta(minutes=1), timedelta(hours=1), DAY)
    before = [await usage(ledger, noon, width) for width in widths]
    assert await ledger.rows(HOURS) == []

    assert await usage_jobs.roll_up() == 6  # three hours of two tenants
    assert await usage_jobs.roll_up() == 0

    assert await ledger.rows(STALE) == []
    assert [await usage(ledger, noon, width) for width in widths] == before
    sums = [{name: sum(row.measures[name] for row in rows) for name in MEASURES} for rows in before]
    assert sums[0] == sums[1] == sums[2]
    assert sums[0]["num_requests"] == 40


async def test_a_prompt_counts_once_for_its_choices_and_not_before_its_first_token(
    ledger: Ledger, noon: datetime
) -> None:
    first = replace(new_request(accepted_at=noon), num_prompt_tokens=30)
    second = replace(new_request(accepted_at=noon), num_prompt_tokens=30, is_first_choice=False)
    gone = replace(new_request(accepted_at=noon), num_prompt_tokens=30)
    await ledger.serve(first, 5, num_cached_tokens=16)
    await ledger.serve(second, 7, num_cached_tokens=16)
    await ledger.serve(gone, 0)
    [row] = await usage(ledger, noon, DAY)
    counts = ("num_requests", "input_tokens", "cached_tokens", "output_tokens")
    assert [row.measures[name] for name in counts] == [3, 30, 16, 12]


async def test_what_ends_late_is_rolled_up_again(
    ledger: Ledger, usage_jobs: UsageJobs, noon: datetime
) -> None:
    await ledger.serve(new_request("req_a", accepted_at=noon), 10)
    await usage_jobs.roll_up()
    await ledger.serve(new_request("req_b", accepted_at=noon), 5)
    await ledger.write(make_record("req_a", generated=12, epoch=2))

    [row] = await usage(ledger, noon, DAY)
    assert row.measures["output_tokens"] == 17
    [rolled] = await ledger.rows(HOURS)
    assert rolled["output_tokens"] == 10, "the ledger was read, not this"

    assert await usage_jobs.roll_up() == 1
    [rolled] = await ledger.rows(HOURS)
    assert (rolled["num_requests"], rolled["output_tokens"]) == (2, 17)


async def test_an_hour_is_rolled_up_when_it_is_over(
    ledger: Ledger, usage_jobs: UsageJobs, clock: Clock
) -> None:
    await ledger.serve(new_request(accepted_at=clock.now()))
    assert await usage_jobs.roll_up() == 0
    clock.advance(2 * 3600 + 300)
    assert await usage_jobs.roll_up() == 1


async def test_a_writer_that_commits_after_the_roll_up_is_not_lost(
    ledger: Ledger, usage_jobs: UsageJobs, noon: datetime
) -> None:
    for name in ("req_a", "req_b"):
        await ledger.accept(new_request(name, accepted_at=noon))
    await ledger.write(make_record("req_a", generated=10))
    async with ledger.database.session() as session:
        repository = LedgerRepository(session)
        await repository.open()
        await write_records(repository, [make_record("req_b", generated=5)])
        assert await usage_jobs.roll_up() == 0, "the hour is being written"
        await session.commit()
    assert await usage_jobs.roll_up() == 1
    [rolled] = await ledger.rows(HOURS)
    assert rolled["output_tokens"] == 15


async def test_writers_and_roll_ups_at_once_lose_nothing(
    ledger: Ledger, usage_jobs: UsageJobs, noon: datetime
) -> None:
    """Seeded in what is done; the interleaving is the servers' own."""
    totals: dict[str, int] = defaultdict(int)
    rng = random.Random(9)

    async def write(worker: int) -> None:
        for i in range(8):
            name = f"req_{worker}_{i}"
            generated = rng.randrange(1, 100)
            totals[name] = generated
            await ledger.write(make_record(name, generated=generated))

    is_over = False

    async def roll() -> None:
        while not is_over:
            await usage_jobs.roll_up()

    names = [f"req_{worker}_{i}" for worker in range(2) for i in range(8)]
    await ledger.accept(*(new_request(name, accepted_at=noon) for name in names))
    rolling = asyncio.create_task(roll())
    await asyncio.gather(write(0), write(1))
    is_over = True
    await rolling
    await usage_jobs.roll_up()
    [rolled] = await ledger.rows(HOURS)
    assert (rolled["num_requests"], rolled["output_tokens"]) == (16, sum(totals.values()))


async def test_control_a_roll_up_that_missed_a_request_is_not_what_usage_says(
    ledger: Ledger, usage_jobs: UsageJobs, noon: datetime
) -> None:
    await ledger.serve(new_request(accepted_at=noon), 10)
    await usage_jobs.roll_up()
    before = await usage(ledger, noon, DAY)
    await ledger.rows("UPDATE usage_hours SET output_tokens = 9")
    assert await usage(ledger, noon, DAY) != before
    assert before[0].start == datetime(2026, 3, 5, tzinfo=UTC)
