"""Swaps, roll-backs and deletions while a real model answers: each text is its digest's own, to the
bit, and so no page, cached block or row of a batch was another version's.

What a digest says alone is computed by a second engine that nobody else uses and that caches
nothing. TEST_FAULTS=soak: 1,000 operations; else 60.
"""

from __future__ import annotations

import asyncio
import os
import random
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest
from safetensors.numpy import save

from app.adapters.jobs import JobRunner
from app.adapters.residency import QueueEngines
from app.context import AppContext
from engine.config import EngineConfig
from engine.transport.levers import EngineLevers
from lora.store import CONFIG_FILE, WEIGHTS_FILE
from tests.builders.adapter_files import adapter_config, adapter_tensors, write_adapter
from tests.builders.engines import EngineHarness, make_request, tokens_of
from tests.builders.operator import Operator, Tenant
from tests.builders.queue_secret import QUEUE_SECRET
from tests.builders.running_engine import RunningEngine
from tests.corpus.lifecycle.conftest import Ask, Push, Version
from tests.corpus.operations import NUM_LIVE, Hand, History, operate_under_traffic, text_of

NUM_OPERATIONS = 1_000 if os.environ.get("TEST_FAULTS") == "soak" else 60
MAX_TOKENS = 12
# Longer than two blocks, so that what one request computed is there for the next.
PROMPT = "Tell me in your own words what you were trained to say."
STRENGTH = 25  # of an adapter: so much that each says something of its own


@pytest.fixture
def engine(tmp_path: Path, redis_url: str, tiny_base_folder: Path) -> Iterator[RunningEngine]:
    """Bits of an answer do not depend on what else runs."""
    with RunningEngine(
        tmp_path, redis_url, model=tiny_base_folder, batch_invariant=True
    ) as running:
        yield running


@pytest.fixture
async def jobs(jobs: JobRunner, redis_url: str) -> AsyncIterator[JobRunner]:
    """Deletions are waited for until the engine has let go."""
    levers = EngineLevers(redis_url, secret=QUEUE_SECRET)
    yield replace(jobs, engines=QueueEngines(levers))
    await levers.close()


@pytest.fixture
def ask(api: httpx.AsyncClient, acme: Tenant) -> Ask:
    async def ask(model: str = "bot", **fields: Any) -> httpx.Response:
        body = {"model": model, "temperature": 0, **fields}
        return await api.post("/v1/completions", json=body, headers=acme.headers)

    return ask


class SoloEngine:
    """What each digest says alone; `texts` by digest."""

    def __init__(self, folder: Path, base_folder: Path, context: AppContext) -> None:
        config = EngineConfig(pool_bytes=1 << 22, batch_invariant=True, prefix_caching=False)
        self._harness = EngineHarness(base_folder, folder / "store", config)
        self._folder = folder
        self._context = context
        self.texts: dict[str, str] = {}

    def run(self, seed: int, files: dict[str, bytes]) -> None:
        ref = self._harness.publish(write_adapter(self._folder / str(seed), files))
        prompt = self._context.tokenizer.encode_prompt(PROMPT)
        request = make_request("solo", prompt, adapter=ref, max_tokens=MAX_TOKENS)
        tokens = tokens_of(self._harness.run([request]))["solo"]
        self.texts[ref.digest] = text_of(self._context, len(prompt), tokens)

    def close(self) -> None:
        self._harness.close()


@pytest.fixture
def solo(tmp_path: Path, tiny_base_folder: Path, context: AppContext) -> Iterator[SoloEngine]:
    made = SoloEngine(tmp_path / "solo", tiny_base_folder, context)
    yield made
    made.close()


@pytest.fixture
def push(operator: Operator, acme: Tenant, context: AppContext, solo: SoloEngine) -> Push:
    async def push(seed: int) -> Version:
        tensors = adapter_tensors(context.base, seed=seed)
        strong = {name: data * STRENGTH for name, data in tensors.items()}
        files = {CONFIG_FILE: adapter_config(), WEIGHTS_FILE: save(strong)}
        await asyncio.to_thread(solo.run, seed, files)
        return await operator.push("acme", "bot", files)

    return push


@pytest.mark.timeout(0)
async def test_no_text_is_another_versions_while_versions_are_swapped_and_deleted(
    operator: Operator, push: Push, engine: RunningEngine, ask: Ask, solo: SoloEngine
) -> None:
    history = History(solo.texts.__getitem__)
    hand = Hand(operator, push, history, random.Random(11))
    await operate_under_traffic(
        hand, ask, history, num=NUM_OPERATIONS, prompt=PROMPT, max_tokens=MAX_TOKENS
    )

    assert history.wrongs() == []
    assert set(history.refusals) <= {"adapter_deleted", "adapter_missing"}, history.refusals
    said = {answer.digest: answer.text for answer in history.answers}
    assert len(said) >= NUM_LIVE
    assert len(set(said.values())) == len(said), "versions that cannot be told apart"
    assert len(history.answers) > NUM_OPERATIONS
    engine.core.check_integrity()
    held = {digest for _, digest in engine.core.residency.ready_keys()}
    live = {version["digest"] for version in hand.live.values()}
    assert held <= live, "an engine holds what was deleted"
