"""The engine process's loop on a real queue: tokens stream out, aborts arrive, pages come back."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from engine.adapter_loader import AdapterLoader
from engine.config import EngineConfig
from engine.core import EngineCore
from engine.loop import EngineLoop
from engine.messages import AdapterRef, EngineRequest, FinishReason
from engine.model_runner import ModelRunner
from engine.transport.client import QueueClient
from engine.transport.server import EngineTransport
from lora.base_spec import BaseSpec
from lora.store import LocalAdapterStore
from tests.builders.peft_models import make_tiny_llama
from tests.builders.requests import make_request
from tests.builders.waiting import until


class RunningEngine:
    """`python -m engine` without the process: every thread of it, on a tiny model."""

    def __init__(self, folder: Path, redis_url: str, **config: int) -> None:
        model = make_tiny_llama(folder / "base")
        base = BaseSpec.from_folder(model)
        settings = EngineConfig(pool_bytes=1 << 22, **config)
        loader = AdapterLoader(
            LocalAdapterStore(folder / "store"), base, on_completed=lambda: self.loop.wake()
        )
        runner = ModelRunner(settings, base, model)
        self.core = EngineCore(settings, base, runner, loader, "engine-a")
        self.loop = EngineLoop(self.core, EngineTransport(redis_url, "engine-a"), settings)
        self._thread = threading.Thread(target=self.loop.run)
        self._loader = loader

    def __enter__(self) -> RunningEngine:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.loop.stop()
        self._thread.join(timeout=30)
        assert not self._thread.is_alive(), "the loop did not stop"
        self._loader.close()

    @property
    def is_empty(self) -> bool:
        pool, idle = self.core.pool, self.core.residency.num_idle_pages
        return not self.core.has_work and pool.num_free + idle == pool.num_pages


@pytest.fixture
async def client(redis_url: str) -> AsyncIterator[QueueClient]:
    client = QueueClient(redis_url, "api-test")
    await client.start()
    yield client
    await client.close()


async def collect(client: QueueClient, request: EngineRequest) -> list[int]:
    tokens: list[int] = []
    async for output in await client.submit(request):
        assert output.error is None, output.error
        assert output.index == len(tokens)
        tokens += output.token_ids
    return tokens


async def test_tokens_stream_from_the_engine_to_their_requests(
    client: QueueClient, redis_url: str, tmp_path: Path
) -> None:
    prompts = [[3, 4, 5], [6] * 30, [7, 8]]
    with RunningEngine(tmp_path, redis_url) as engine:
        solo = [await collect(client, make_request(prompt=p, max_tokens=12)) for p in prompts]
        together = await asyncio.gather(
            *(collect(client, make_request(prompt=p, max_tokens=12)) for p in prompts)
        )
        assert list(together) == solo
        assert [len(tokens) for tokens in solo] == [12, 12, 12]
        await until(lambda: engine.is_empty)


async def test_more_requests_than_the_engine_has_room_for_all_finish(
    client: QueueClient, redis_url: str, tmp_path: Path
) -> None:
    with RunningEngine(tmp_path, redis_url, max_num_seqs=2, num_look_ahead=1):
        answers = await asyncio.gather(
            *(collect(client, make_request(f"ten_{i % 3}", max_tokens=5)) for i in range(20))
        )
    assert [len(tokens) for tokens in answers] == [5] * 20


async def test_a_client_that_goes_away_frees_its_pages(
    client: QueueClient, redis_url: str, tmp_path: Path
) -> None:
    with RunningEngine(tmp_path, redis_url) as engine:
        stream = await client.submit(make_request(max_tokens=400))
        async for _ in stream:
            break
        stream.close()
        await until(lambda: engine.is_empty)
        assert len(await collect(client, make_request(max_tokens=3))) == 3


async def test_a_missing_adapter_is_answered_and_others_go_on(
    client: QueueClient, redis_url: str, tmp_path: Path
) -> None:
    nowhere = AdapterRef(
        tenant_id="ten_a", digest=f"sha256:{'0' * 64}", locator=f"ten_a/{'0' * 64}"
    )
    with RunningEngine(tmp_path, redis_url):
        stream = await client.submit(make_request(adapter=nowhere))
        outputs = [output async for output in stream]
        assert outputs[-1].finish_reason is FinishReason.ERROR
        assert outputs[-1].error is not None and outputs[-1].error.code == "adapter_missing"
        assert len(await collect(client, make_request(max_tokens=3))) == 3
