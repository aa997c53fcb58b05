"""Clients that do not read, and clients that have to wait: of a real API process.

Those that do not read cost it little memory each, are cut by name, and nobody else waits for them.
Those that wait have the head of their stream after two seconds, and then signs of life.
"""

from __future__ import annotations

import asyncio
import json
import statistics
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import suppress
from itertools import count
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest
from openai import AsyncOpenAI

from app.db import Database
from app.launcher.postgres import PostgresServer
from tests.app.requests.conftest import Rows
from tests.builders.raw_client import RawClient
from tests.builders.tiny_base import MODEL_ID
from tests.builders.waiting import eventually, until
from tests.faults.campaign import Campaign, Recorder, amount
from tests.faults.campaigns import campaign
from tests.faults.clients import PATH
from tests.faults.site import tell
from tests.stub_engine.base import stub_base
from tests.stub_engine.runner import generate

pytestmark = pytest.mark.timeout(600)

NUM_STALLED = {"few": 40, "many": 200, "soak": 200}
MAX_TOKENS = 400
STEP_S = 0.1
STALL_TIMEOUT_S = 6.0
SMALL_BUFFER = 4096
BOUND_BYTES = 64 << 10
HEAP_BYTES = 4 << 20
"""That a process may grow by in a minute of whatever it does."""
READING_S = 10.0
"""For so long as many clients read, to tell what a stream costs that nobody holds up."""
BUSY_MACHINE_S = 0.5
HEAD_S = 2.0
KEEPALIVE_S = 15.0
WAITING_MACHINE_S = 6.0
OPTIONS = {
    "TENFOLD_CLIENT_STALL_TIMEOUT_S": str(STALL_TIMEOUT_S),
    "TENFOLD_TENANT_CONCURRENCY": "1000",
    "TENFOLD_TENANT_QUEUE_DEPTH": "1000",
}
ENGINE = {
    "--step-ms": str(1000 * STEP_S),
    "--num-pages": "8192",
    "--max-num-seqs": "256",
    "--max-num-batched-tokens": "512",
}


@pytest.fixture(scope="module")
def scene(
    postgres: PostgresServer,
    registry_template: str,
    tiny_base_folder: Path,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Campaign]:
    """One API process, and one engine that has room for everybody."""
    folder = tmp_path_factory.mktemp("slow-readers")
    options = [word for pair in ENGINE.items() for word in pair]
    command = ("tests.stub_engine", "--model", str(tiny_base_folder), *options)
    with campaign(
        postgres,
        registry_template,
        tiny_base_folder,
        folder,
        command,
        num_engines=1,
        num_apis=1,
        api_options=OPTIONS,
    ) as opened:
        yield opened


def long_prompts(num: int) -> list[list[int]]:
    """Whose answers do not end by themselves before `MAX_TOKENS`."""
    base = stub_base()
    prompts: list[list[int]] = []
    for first in count():
        prompt = [first % base.vocab_size, first // base.vocab_size, 7]
        answer = generate(prompt, None, MAX_TOKENS, base.vocab_size)
        if not set(base.eos_token_ids) & set(answer):
            prompts.append(prompt)
        if len(prompts) == num:
            break
    return prompts


def body(prompt: Sequence[int], max_tokens: int = MAX_TOKENS) -> dict[str, Any]:
    return {"model": MODEL_ID, "prompt": list(prompt), "max_tokens": max_tokens, "stream": True}


async def first_token_s(client: httpx.AsyncClient, prompt: Sequence[int]) -> float:
    """How long another client waits for its first token; it reads all it is sent."""
    began_at = time.monotonic()
    async with client.stream("POST", PATH, json=body(prompt, 2)) as response:
        assert response.status_code == 200, await response.aread()
        lines = response.aiter_lines()
        await anext(lines)
        seconds = time.monotonic() - began_at
        assert [line async for line in lines if line][-1] == "data: [DONE]"
    return seconds


async def read_a_while(
    client: httpx.AsyncClient, prompt: Sequence[int], memory: psutil.Process
) -> int:
    """The most that the process holds meanwhile, in bytes."""
    with suppress(TimeoutError):
        async with (
            asyncio.timeout(READING_S),
            client.stream("POST", PATH, json=body(prompt)) as response,
        ):
            assert response.status_code == 200, await response.aread()
            async for _ in response.aiter_bytes():
                pass
    return memory.memory_info().rss


async def test_many_clients_that_do_not_read_cost_little_slow_nobody_and_are_cut_by_name(
    scene: Campaign, record_property: Recorder
) -> None:
    num, api = NUM_STALLED[amount()], scene.stack.apis[0]
    prompts = await asyncio.to_thread(long_prompts, num)
    assert api.process is not None
    memory, owner = psutil.Process(api.process.pid), Database(scene.owner_url, pool_size=1)
    rows = Rows(owner)

    def num_cut() -> int:
        return api.log.read_text().count('"client_too_slow"')

    async with httpx.AsyncClient(
        base_url=api.url, headers=scene.headers, timeout=60, limits=httpx.Limits()
    ) as client:
        reading = [asyncio.create_task(read_a_while(client, each, memory)) for each in prompts]
        beside_readers: list[float] = []
        while not all(each.done() for each in reading):
            beside_readers.append(await first_token_s(client, prompts[0]))
        read = await asyncio.gather(*reading)
        known = {row["request_id"] for row in await rows.requests()}
        rss = [memory.memory_info().rss]
        stalled = [RawClient(api.url, receive_buffer=SMALL_BUFFER) for _ in range(num)]
        for each, prompt in zip(stalled, prompts, strict=True):
            await asyncio.to_thread(each.post, PATH, body(prompt), scene.headers)
        during: list[float] = []
        give_up_at = time.monotonic() + 2 * MAX_TOKENS * STEP_S
        while num_cut() < num:
            assert time.monotonic() < give_up_at, f"{num_cut()} of {num} are cut"
            during.append(await first_token_s(client, prompts[0]))
            rss.append(memory.memory_info().rss)
    for each in stalled:
        each.close()

    async def reasons() -> set[str]:
        ended = [row for row in await rows.finals() if row["request_id"] not in known]
        of_stalled = [row for row in ended if row["num_generated_tokens"] > 2]
        return {row["finish_reason"] for row in of_stalled} if len(of_stalled) == num else set()

    async def all_are_named() -> bool:
        return await reasons() == {"client_too_slow"}

    await eventually(all_are_named, timeout_s=30)
    await owner.close()
    more_bytes = max(rss) - max(read)
    looks = (beside_readers, during)
    p50, longest = ([1e3 * of(times) for times in looks] for of in (statistics.median, max))
    tell(
        record_property,
        f"{num} clients that do not read: {more_bytes / num / 1024:.0f} KiB each more, all cut;"
        f" the first token of others, beside as many that read and beside these: p50 {p50[0]:.0f}"
        f" and {p50[1]:.0f} ms, longest {longest[0]:.0f} and {longest[1]:.0f} ms",
    )
    assert more_bytes < num * BOUND_BYTES + HEAP_BYTES
    assert statistics.median(during) < statistics.median(beside_readers) + BUSY_MACHINE_S


async def test_a_stream_that_waits_has_its_head_in_two_seconds_and_then_signs_of_life(
    scene: Campaign,
) -> None:
    """Its client, as the SDK's, reads on to the end once there is an engine again."""
    api, engine = scene.stack.apis[0], scene.stack.engines[0]
    question = body([7, 7, 7], 4)
    async with (
        httpx.AsyncClient(base_url=api.url, headers=scene.headers, timeout=60) as client,
        AsyncOpenAI(
            base_url=f"{api.url}/v1", api_key=scene.headers["x-api-key"], max_retries=0
        ) as sdk,
    ):
        async with client.stream("POST", PATH, json=question) as response:
            undisturbed = _said([line async for line in response.aiter_lines()])
        await asyncio.to_thread(engine.kill)
        await until(lambda: not _is_ready(api.url), timeout_s=30)

        began_at = time.monotonic()
        ours = asyncio.create_task(_text_of(sdk, question))
        async with client.stream("POST", PATH, json=question) as response:
            head_s = time.monotonic() - began_at
            lines = response.aiter_lines()
            heard = [line async for line in _until_signs_of_life(lines, 2)]
            alive_s = time.monotonic() - began_at
            engine.launch()
            heard += [line async for line in lines if line]
        text = await ours
    assert response.status_code == 200
    assert HEAD_S <= head_s < HEAD_S + WAITING_MACHINE_S
    assert HEAD_S + KEEPALIVE_S <= alive_s < HEAD_S + KEEPALIVE_S + WAITING_MACHINE_S
    assert heard[-1] == "data: [DONE]" and not any('"error"' in line for line in heard)
    assert _said(heard) == text == undisturbed != ""


def _is_ready(url: str) -> bool:
    return httpx.get(f"{url}/readyz", timeout=5).status_code == 200


async def _until_signs_of_life(lines: AsyncIterator[str], num: int) -> AsyncIterator[str]:
    """The first of a text comes with the head."""
    async for line in lines:
        if line:
            yield line
        num -= line == ": keepalive"
        if num == 0:
            return


def _said(lines: Sequence[str]) -> str:
    """The text of a stream's events."""
    events = [json.loads(line[6:]) for line in lines if line.startswith("data: {")]
    return "".join(choice["text"] for event in events for choice in event["choices"])


async def _text_of(sdk: AsyncOpenAI, question: dict[str, Any]) -> str:
    stream = await sdk.completions.create(**question)
    return "".join([chunk.choices[0].text async for chunk in stream if chunk.choices])
