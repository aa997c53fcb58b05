"""Two tenants, two adapters of one name, one batch: nobody sees, lists or hears the other.

Tests, which `test_demo.py` has among its own: of one file, they have one demo.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

import httpx
import pytest
from openai import AsyncOpenAI, NotFoundError

from tests.faults.campaign import amount

BASE_MODEL = "HuggingFaceTB/SmolLM2-135M-Instruct"
BOT = "support-bot"
QUESTIONS = ("What is your return policy?", "Hello! Who are you?", "Where is my parcel?")
NUM_ANSWERS = {"few": 36, "many": 200, "soak": 1000}
"""What `make test` asks, `make faults` and `make soak`."""
MAX_TOKENS = 16
NUM_STREAMS = 12


@dataclass(frozen=True, slots=True)
class Case:
    """Who asks which model what."""

    tenant: str
    model: str
    question: str

    def __str__(self) -> str:
        return f"{self.tenant}'s {self.model} on {self.question!r}"


CASES = [
    Case(tenant, model, question)
    for tenant in ("acme", "globex")
    for model in (BOT, BASE_MODEL)
    for question in QUESTIONS
]


@pytest.fixture
async def clients(demo: dict[str, Any]) -> AsyncIterator[dict[str, AsyncOpenAI]]:
    clients = {
        tenant: AsyncOpenAI(base_url=f"{demo['base_url']}/v1", api_key=facts["api_key"])
        for tenant, facts in demo["tenants"].items()
    }
    yield clients
    for client in clients.values():
        await client.close()


async def ask(client: AsyncOpenAI, case: Case) -> str:
    """The answer, streamed, sampled with a seed."""
    stream = await client.chat.completions.create(
        model=case.model,
        messages=[{"role": "user", "content": case.question}],
        max_tokens=MAX_TOKENS,
        temperature=0.7,
        seed=11,
        stream=True,
    )
    parts = [chunk.choices[0].delta.content or "" async for chunk in stream if chunk.choices]
    return "".join(parts)


def leak_of(case: Case, answer: str, solo: dict[Case, str]) -> str | None:
    """Whose text `answer` is, if it is not the case's own."""
    if answer == solo[case]:
        return None
    owners = [str(other) for other, text in solo.items() if text == answer]
    return f"{case} was answered {answer!r}: the text of {owners or 'nobody'}"


async def test_mixed_streamed_answers_equal_each_tenants_solo_answer(
    clients: dict[str, AsyncOpenAI],
) -> None:
    solo = {case: await ask(clients[case.tenant], case) for case in CASES}
    for question in QUESTIONS:
        answers = {solo[case] for case in CASES if case.question == question}
        assert len(answers) == 3, "two bots and the base must differ for a leak to be seen"
    order = [CASES[index % len(CASES)] for index in range(NUM_ANSWERS[amount()])]
    random.Random(3).shuffle(order)
    gate = asyncio.Semaphore(NUM_STREAMS)

    async def checked(case: Case) -> str | None:
        async with gate:
            return leak_of(case, await ask(clients[case.tenant], case), solo)

    leaks = [leak for leak in await asyncio.gather(*map(checked, order)) if leak]
    assert not leaks, "\n".join(leaks)


def test_a_leak_is_named() -> None:
    mine, other = CASES[0], CASES[-1]
    solo = {case: str(case) for case in CASES}
    assert leak_of(mine, solo[mine], solo) is None
    assert str(other) in (leak_of(mine, solo[other], solo) or "")
    assert "nobody" in (leak_of(mine, "something else", solo) or "")


async def test_both_tenants_get_their_own_digest_under_one_name(demo: dict[str, Any]) -> None:
    digests = set()
    async with httpx.AsyncClient(base_url=demo["base_url"], timeout=60) as client:
        for facts in demo["tenants"].values():
            answer = await client.post(
                "/v1/chat/completions",
                headers={"authorization": f"Bearer {facts['api_key']}"},
                json={
                    "model": BOT,
                    "messages": [{"role": "user", "content": "Hi"}],
                    "max_tokens": 2,
                },
            )
            assert answer.status_code == 200, answer.text
            assert answer.headers["x-adapter-version"] == "v1"
            digests.add(answer.headers["x-adapter-digest"])
    assert len(digests) == 2


async def test_the_others_adapter_is_not_found_in_the_same_bytes_as_what_does_not_exist(
    demo: dict[str, Any],
) -> None:
    async with httpx.AsyncClient(base_url=demo["base_url"], timeout=60) as client:
        facts = {name: demo["tenants"][name] for name in ("acme", "globex")}
        headers = {
            name: {"authorization": f"Bearer {each['api_key']}"} for name, each in facts.items()
        }
        listed = (await client.get("/v1/models", headers=headers["acme"])).json()["data"]
        own = await client.get(f"/v1/models/{BOT}", headers=headers["globex"])
        foreign_name = f"{BOT}@{own.json()['x_adapter']['digest'][:19]}"
        assert {card["id"] for card in listed} <= {BOT, BASE_MODEL}
        answers = []
        for name in (foreign_name, f"{BOT}@sha256:{'0' * 12}"):
            body = {"model": name, "messages": [{"role": "user", "content": "Hi"}]}
            asked = await client.post("/v1/chat/completions", headers=headers["acme"], json=body)
            seen = await client.get(f"/v1/models/{name}", headers=headers["acme"])
            assert asked.status_code == seen.status_code == 404
            answers.append((asked.text.replace(name, "NAME"), seen.text.replace(name, "NAME")))
        assert answers[0] == answers[1]


async def test_the_tenants_path_serves_only_its_own_key(
    demo: dict[str, Any], clients: dict[str, AsyncOpenAI]
) -> None:
    for path_tenant in ("acme", "globex"):
        scoped = clients["acme"].with_options(base_url=f"{demo['base_url']}/t/{path_tenant}/v1")
        if path_tenant == "acme":
            assert BOT in [model.id async for model in scoped.models.list()]
        else:
            with pytest.raises(NotFoundError):
                await scoped.models.list()
