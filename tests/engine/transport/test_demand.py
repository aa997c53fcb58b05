"""What an autoscaler is told: how much waits, for how long, and that the last engine is needed."""

from __future__ import annotations

from engine.transport.client import QueueClient
from engine.transport.demand import Demand, demand_of
from engine.transport.server import EngineTransport
from tests.builders.requests import make_request


def test_tokens_of_a_long_queue_are_extrapolated() -> None:
    found = demand_of([2000, 3, 500, 50_000, 1500])
    assert found == Demand(num_queued=2000, num_running=3, queued_tokens=200_000, oldest_wait_s=1.5)


def test_no_engine_is_wanted_only_where_nothing_waits_and_nothing_runs() -> None:
    assert demand_of([0, 0, 0, 0, 0]).wanted == 0
    assert demand_of([1, 0, 1, 10, 0]).wanted == 1
    assert demand_of([0, 1, 0, 0, 0]).wanted == 1


async def test_queue_says_what_waits_and_what_runs(
    client: QueueClient, transport: EngineTransport
) -> None:
    requests = [make_request(f"ten_{n % 2}") for n in range(4)]
    for request in requests:
        await client.submit(request)
    tokens = sum(len(each.prompt_token_ids) + each.sampling.max_tokens for each in requests)
    waiting = await client.demand()
    assert (waiting.num_queued, waiting.num_running, waiting.queued_tokens) == (4, 0, tokens)
    assert 0 <= waiting.oldest_wait_s < 5

    leased = transport.lease(1000, 16, 4)
    running = await client.demand()
    assert (running.num_queued, running.num_running) == (0, len(leased)) == (0, 4)
    assert running.wanted == 1
