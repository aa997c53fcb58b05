"""API processes behind a load balancer, engines and a worker, each replaced as a roll-out does.

Knows nothing of verdicts. Invariant: of one kind one is replaced at a time, and the next only when
the load balancer, or the queue, knows of the new one.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx

from app.settings import Settings
from lora.base_spec import BaseSpec
from tests.builders.adapter_files import adapter_files
from tests.builders.operator import OPERATOR
from tests.builders.waiting import until, wait_until
from tests.chart.servers import LoadBalancer, haproxy
from tests.faults.campaign import NUM_IN_FLIGHT, Campaign
from tests.faults.clients import Clients, Question, some_questions
from tests.faults.stack import Api, Engine, Stack

SEED = 8
NUM_APIS = 3
NUM_ENGINES = 3
NUM_QUESTIONS = 24
MAX_TOKENS = (8, 40)  # at 30 ms each, so that some outlast an engine's drain
STEP_MS = 30
DRAIN_TIMEOUT_S = 90.0
# As the chart asks, and in less time: the load balancer looks ten times a second.
READINESS = "/readyz?engines=optional"
API_OPTIONS = {"TENFOLD_DRAIN_DELAY_S": "2", "TENFOLD_DRAIN_S": "60"}
ENGINE_OPTIONS = ("--step-ms", str(STEP_MS), "--load-ms", "50", "--drain-s", "0.4")


class BalancedCampaign(Campaign):
    """Whose clients know one address."""

    def __init__(self, balancer: LoadBalancer, *args: Any) -> None:
        super().__init__(*args)
        self.balancer = balancer

    def questions(self) -> list[Question]:
        models = list(self.digests)
        return some_questions(NUM_QUESTIONS, MAX_TOKENS, random.Random(SEED), models)

    def clients(self, questions: Sequence[Question], num: int = NUM_IN_FLIGHT) -> Clients:
        return Clients(lambda: [self.balancer.url], self.headers, questions, num, self.rng)


@contextmanager
def balanced_campaign(
    settings: Settings, owner_url: str, folder: Path
) -> Iterator[BalancedCampaign]:
    """`settings` name a registry of its own."""
    base = BaseSpec.from_folder(settings.model)
    adapters = {f"bot-{rank}": adapter_files(base, rank=rank, seed=rank) for rank in (4, 9)}
    command = ("tests.stub_engine", "--model", str(settings.model), *ENGINE_OPTIONS)
    sizes = {"num_engines": NUM_ENGINES, "num_apis": NUM_APIS}
    with (
        Stack(settings, folder / "stack", command, **sizes, api_options=API_OPTIONS) as stack,
        haproxy(stack.urls(), READINESS, folder) as balancer,
    ):
        yield BalancedCampaign(balancer, stack, owner_url, random.Random(SEED), adapters)


async def replace_apis(stack: Stack, balancer: LoadBalancer, num: int) -> None:
    """One after the other; every second one without a hook, by the signal alone."""
    for number in range(num):
        api = stack.apis[number % len(stack.apis)]
        await asyncio.to_thread(_replace_api, api, by_hook=number % 2 == 0)
        await asyncio.to_thread(_wait_until_up, balancer, len(stack.apis))


async def replace_engines(stack: Stack, num: int) -> None:
    """The old one goes before the new one comes, as where there is one GPU for it."""
    for number in range(num):
        engine = stack.engines[number % len(stack.engines)]
        await asyncio.to_thread(_replace_engine, stack, engine)


async def replace_worker(stack: Stack, num: int) -> None:
    for _ in range(num):
        await asyncio.to_thread(_replace_worker, stack)
        await asyncio.sleep(1)


async def kill_api(stack: Stack, balancer: LoadBalancer, clients: Clients) -> None:
    """Without a drain, while it answers."""

    def num_streaming() -> int:
        return sum(bool(clients.calls[place].pieces) for place in clients.in_flight)

    await until(lambda: num_streaming() > NUM_IN_FLIGHT // 3, timeout_s=DRAIN_TIMEOUT_S)
    await asyncio.to_thread(stack.apis[0].kill)
    await asyncio.to_thread(stack.apis[0].start)
    await asyncio.to_thread(_wait_until_up, balancer, len(stack.apis))


def drain_by_hook(admin_url: str, headers: Mapping[str, str] = OPERATOR) -> None:
    """What `tenfold drain` does before the signal."""

    def is_drained() -> bool:
        response = admin.post("/internal/drain").raise_for_status()
        return bool(response.json()["is_drained"])

    with httpx.Client(base_url=admin_url, headers=headers, timeout=30) as admin:
        wait_until(is_drained, timeout_s=DRAIN_TIMEOUT_S)


def _replace_api(api: Api, *, by_hook: bool) -> None:
    leaving = api.process
    assert leaving is not None
    if by_hook:
        drain_by_hook(api.admin_url)
    leaving.terminate()
    assert leaving.wait(DRAIN_TIMEOUT_S) == 0, api.log.read_text()
    api.start()


def _replace_engine(stack: Stack, engine: Engine) -> None:
    leaving = engine.process
    leaving.terminate()
    assert leaving.wait(DRAIN_TIMEOUT_S) == 0, engine.engine_id
    engine.launch()
    stack.wait_for([engine])


def _replace_worker(stack: Stack) -> None:
    leaving, log = stack.worker.process, stack.worker.log
    assert leaving is not None
    num_lives = log.read_text().count("worker_listening")
    leaving.terminate()
    assert leaving.wait(DRAIN_TIMEOUT_S) == 0, log.read_text()
    stack.worker.launch()
    wait_until(
        lambda: log.read_text().count("worker_listening") > num_lives, timeout_s=DRAIN_TIMEOUT_S
    )


def _wait_until_up(balancer: LoadBalancer, num: int) -> None:
    wait_until(lambda: balancer.num_up() == num, timeout_s=DRAIN_TIMEOUT_S)
