"""What becomes of uploads, of loads and of everybody else when the adapter store is down.

Each test is a row of the table in docs/operations.md, and is named there.
"""

from __future__ import annotations

import asyncio
import errno
import os
import time
from dataclasses import replace
from pathlib import Path

import httpx
import redis
from sqlalchemy import make_url

from app.api import create_admin_app, create_app
from app.availability import Availability
from app.chat_templates.versions import VersionTemplates
from app.launcher.valkey import ValkeyServer
from app.registry_snapshot import RegistrySnapshot
from app.settings import Settings
from lora.base_spec import BaseSpec
from lora.store import CHAT_TEMPLATE_FILE
from tests.builders.adapter_files import adapter_files
from tests.builders.failing_disk import FailingDisk
from tests.builders.hanging_store import HangingStore
from tests.builders.operator import OPERATOR
from tests.builders.running_engine import RunningEngine
from tests.builders.server import serving
from tests.builders.tiny_base import MODEL_ID
from tests.builders.waiting import eventually, until
from tests.faults.campaign import Recorder
from tests.faults.real_base import write_real_base
from tests.faults.site import PATH, WHOLE_AGAIN_S, Site, linked, open_site, tell
from tests.faults.test_dependencies import PRODUCTION, own_valkey, redis_link, server, site
from tests.fixtures.servers import TestDatabase

__all__ = ["own_valkey", "redis_link", "server", "site"]

CHAT = "/v1/chat/completions"
NUM_THREADS = min(32, (os.cpu_count() or 1) + 4)
"""That asyncio has for what goes to a disk or a bucket."""


async def push(site: Site, files: dict[str, bytes]) -> httpx.Response:
    """An upload to acme's bot."""
    return await site.operator.upload("acme", "bot", files)


async def test_the_adapter_store_is_missing_when_a_version_is_uploaded(
    site: Site, tiny_base: BaseSpec
) -> None:
    await site.operator.new_adapter("acme", "bot")
    store, files = Path(site.context.settings.adapter_store), adapter_files(tiny_base)
    await asyncio.to_thread(store.write_bytes, b"no folder")
    response = await push(site, files)
    assert (response.status_code, response.json()["error"]["code"]) == (
        503,
        "dependency_unavailable",
    )
    assert await site.is_served(), "inference does not need it"

    await asyncio.to_thread(store.unlink)
    assert (await site.operator.push("acme", "bot", files))["state"] == "active"


async def test_the_adapter_store_is_full(site: Site, tiny_base: BaseSpec) -> None:
    await site.operator.new_adapter("acme", "bot")
    full = replace(site.context, store=FailingDisk(site.context.store, errno.ENOSPC))
    sent = {name: (name, content) for name, content in adapter_files(tiny_base).items()}
    async with httpx.AsyncClient(
        transport=httpx.ASGITransport(create_admin_app(full)),
        base_url="http://tenfold.test",
        headers=OPERATOR,
    ) as admin:
        path = "/admin/v1/tenants/acme/adapters/bot/versions"
        response = await admin.post(path, files=sent)
    assert (response.status_code, response.json()["error"]["code"]) == (503, "storage_full")
    assert await site.is_served(), "inference does not need it"
    assert (await site.operator.push("acme", "bot", adapter_files(tiny_base)))["state"] == "active"


async def test_the_adapter_store_hangs(
    site: Site, tiny_base: BaseSpec, record_property: Recorder
) -> None:
    """Conversations whose template has to be read hang with it, and nobody else does."""
    template = {CHAT_TEMPLATE_FILE: b"{{ messages[0].content }}"}
    await site.operator.new_adapter("acme", "bot")
    await site.operator.push("acme", "bot", adapter_files(tiny_base) | template)
    store = HangingStore(Path(site.context.settings.adapter_store))
    templates = VersionTemplates(store, site.context.sandbox)
    patient = Availability("registry", site.context.database.ping, timeout_s=60)  # so many at once
    registry = RegistrySnapshot(patient)
    hung = replace(site.context, store=store, templates=templates, registry=registry)
    talk: dict[str, object] = {
        "model": "bot",
        "messages": [{"role": "user", "content": "hi"}],
        "max_tokens": 2,
    }
    text: dict[str, object] = {"model": MODEL_ID, "prompt": "abc", "max_tokens": 4}
    async with (
        serving(create_app(hung)) as url,
        httpx.AsyncClient(base_url=url, headers=site.tenant.headers, timeout=60) as client,
    ):
        asking = [asyncio.create_task(client.post(CHAT, json=talk)) for _ in range(2 * NUM_THREADS)]
        try:
            await until(lambda: store.num_waiting == NUM_THREADS, timeout_s=60)
            late = asyncio.create_task(asyncio.to_thread(int))
            began_at = time.monotonic()
            await eventually(lambda: is_ok(client, PATH, text))
            seconds = time.monotonic() - began_at
            assert not late.done(), "a thread was left: nothing has been shown"
        finally:
            store.may_answer.set()
        answers = await asyncio.gather(*asking)
        assert {response.status_code for response in answers} <= {200, 503}
        await late
        await eventually(lambda: is_ok(client, CHAT, talk))
    tell(record_property, f"The adapter store hangs: others are served, in {1e3 * seconds:.0f} ms")


async def is_ok(client: httpx.AsyncClient, path: str, body: dict[str, object]) -> bool:
    return (await client.post(path, json=body)).status_code == 200


async def test_the_adapter_store_is_missing_when_an_engine_loads_an_adapter(
    settings: Settings,
    database: TestDatabase,
    own_valkey: ValkeyServer,
    server: redis.Redis,
    tmp_path: Path,
) -> None:
    """A real engine reads the store; whoever does not want the adapter is served."""
    port = make_url(database.app_url).port
    assert port is not None
    model = await asyncio.to_thread(write_real_base, tmp_path / "base")
    store = tmp_path / "store"
    async with (
        linked(own_valkey.url, lambda: own_valkey.port) as (redis_url, redis_relay),
        linked(database.app_url, lambda: port) as (database_url, postgres_relay),
    ):
        urls = {"database_url": database_url, "redis_url": redis_url}
        changes = {"model": model, "adapter_store": str(store)}
        real = settings.model_copy(update=PRODUCTION | urls | changes)
        engine = await asyncio.to_thread(RunningEngine, tmp_path, own_valkey.url, model=model)
        with engine:
            async with open_site(
                real, database.owner_url, own_valkey.url, redis_relay, postgres_relay
            ) as site:
                await eventually(site.is_served)
                await site.operator.new_adapter("acme", "bot")
                files = adapter_files(site.context.base)
                await site.operator.push("acme", "bot", files)

                elsewhere = tmp_path / "elsewhere"
                await asyncio.to_thread(store.rename, elsewhere)
                response = await site.ask(model="bot")
                assert (response.status_code, response.json()["error"]["code"]) == (
                    503,
                    "adapter_missing",
                )
                assert await site.is_served(), "the base does not need it"

                await asyncio.to_thread(elsewhere.rename, store)

                async def bot_is_served() -> bool:
                    return (await site.ask(model="bot")).status_code == 200

                await eventually(bot_is_served, timeout_s=WHOLE_AGAIN_S)
