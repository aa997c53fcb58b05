"""No prompt, no answer, no key and no secret is in a log, a metric, an error or a table.

Real processes serve every kind of request, good and bad, each with a canary in it; then all that
they left is scanned for the canaries, in clear and in the ways that a text is usually encoded.
"""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import AsyncIterator, Iterator, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import quote

import httpx
import pytest
from pydantic import SecretStr
from sqlalchemy import make_url, text

from app.api_keys.secret import new_secret
from app.db import Database
from app.launcher.postgres import PostgresServer
from app.settings import Settings
from lora.base_spec import BaseSpec
from tests.builders.adapter_files import adapter_config, adapter_files
from tests.builders.tiny_base import MODEL_ID
from tests.builders.waiting import eventually
from tests.faults.stack import Stack
from tests.fixtures.servers import TestDatabase, new_database

PROMPT = "canary-of-a-prompt-6f2d81"
VALUE = "canary-of-a-bad-value-93ab04"
CONFIG = "canary-of-an-adapter-51cc7e"
IDEMPOTENCY_KEY = "canary-of-a-repeated-request-0d77"
PEPPER = "canary-of-the-pepper-b19e52"
QUEUE_SECRET = "canary-of-the-queue-e8f330"
ADMIN_KEY = "canary-of-the-operator-2cc41f"
WRONG_KEYS = (new_secret(), "tf_canary-of-no-key-at-all-7765", "sk-canary-of-another-kind-31d9")
MIN_ANSWER_CHARS = 8


def spellings(canary: str) -> set[bytes]:
    """The ways in which a text may have come somewhere."""
    raw = canary.encode()
    found = {raw, raw.hex().encode(), quote(canary, safe="").encode()}
    found.add(json.dumps(canary)[1:-1].encode())
    for begin in range(3):  # where it begins within a longer text in base 64
        padded = base64.b64encode(b"\0" * begin + raw)
        found.add(padded[(0, 2, 3)[begin] : -4])
    return found


def hits(canaries: Mapping[str, str], found: bytes) -> list[str]:
    """The names of those that are in it."""
    return [
        name
        for name, canary in canaries.items()
        if any(each in found for each in spellings(canary))
    ]


class Scene:
    """One tenant of an installation; what it is told where it is refused, and what it got."""

    def __init__(self, stack: Stack, base: BaseSpec) -> None:
        self._base = base
        api, self._admin_url = stack.apis[0], stack.apis[0].admin_url
        headers = {"authorization": f"Bearer {ADMIN_KEY}"}
        self.admin = httpx.AsyncClient(
            base_url=f"{self._admin_url}/admin/v1", headers=headers, timeout=60
        )
        self.api = httpx.AsyncClient(base_url=api.url, timeout=60)
        self._bare = httpx.AsyncClient(base_url=api.url, timeout=60)
        self.refusals: list[bytes] = []
        self.answers: list[str] = []
        self.secrets: list[str] = []

    async def open(self) -> None:
        await self.sent(self.admin, "POST", "/tenants", json={"slug": "acme"})
        body = {"scopes": ["inference", "adapters:write", "keys:write", "usage:read"]}
        again = {"idempotency-key": IDEMPOTENCY_KEY}
        for _ in range(2):
            made = await self.sent(
                self.admin, "POST", "/tenants/acme/keys", json=body, headers=again
            )
        self.secrets.append(made.json()["secret"])
        rotated = await self.sent(
            self.admin, "POST", f"/tenants/acme/keys/{made.json()['id']}/rotate"
        )
        self.secrets.append(rotated.json()["secret"])
        self.api.headers["authorization"] = f"Bearer {self.secrets[-1]}"

    async def close(self) -> None:
        await self.admin.aclose()
        await self.api.aclose()
        await self._bare.aclose()

    async def sent(
        self, client: httpx.AsyncClient, method: str, path: str, **options: Any
    ) -> httpx.Response:
        answer = await client.request(method, path, **options)
        assert answer.status_code < 500, (path, answer.text)
        if answer.status_code >= 400:
            self.refusals.append(answer.content + str(answer.headers).encode())
        return answer

    async def metrics(self) -> bytes:
        return (await self.admin.get(f"{self._admin_url}/metrics")).raise_for_status().content

    async def serve(self) -> None:
        """What is answered."""
        chat = {"model": MODEL_ID, "messages": [{"role": "user", "content": PROMPT}]}
        plain = {"model": MODEL_ID, "prompt": [PROMPT, f"{PROMPT} again"]}
        for path, body in (("/v1/chat/completions", chat), ("/v1/completions", plain)):
            for more in ({}, {"n": 2}, {"stream": True}, {"stop": [VALUE]}, {"user": VALUE}):
                sent = {**body, "max_tokens": 24, **more}
                answer = await self.sent(self.api, "POST", path, json=sent)
                if answer.is_success and not more.get("stream"):
                    self._note(answer.json())
        await asyncio.gather(*(self._leave(chat) for _ in range(3)))
        await self.sent(self.api, "GET", "/v1/models")
        await self.sent(self.api, "GET", "/v1/usage", params={"start_time": 0})
        await self._upload(adapter_files(self._base))

    async def refuse(self) -> None:
        """What is refused, in every way that a client finds."""
        chat = {"model": MODEL_ID, "messages": [{"role": "user", "content": PROMPT}]}
        bad: list[dict[str, Any]] = [
            {**chat, "temperature": VALUE},
            {**chat, "messages": VALUE},
            {**chat, "messages": [{"role": VALUE, "content": PROMPT}]},
            {**chat, "messages": [{"role": "user", "content": {"text": VALUE}}]},
            {**chat, "messages": [{"role": "user", "content": [{"type": VALUE, "text": PROMPT}]}]},
            {**chat, "tools": [{"type": "function", "function": {"name": VALUE}}]},
            {**chat, "response_format": {"type": "json_schema", "json_schema": {"name": VALUE}}},
            {**chat, "logit_bias": {"1": VALUE}},
            {**chat, "max_tokens": VALUE},
            {**chat, "max_tokens": -1, "user": VALUE},
            {**chat, "service_tier": VALUE},
            {**chat, "metadata": VALUE},
            {**chat, "stop": {"a": VALUE}},
            {**chat, "messages": [{"role": "user", "content": f"{PROMPT} " * 20_000}]},
            {**chat, "model": "nobodys-model"},
        ]
        for body in bad:
            await self.sent(self.api, "POST", "/v1/chat/completions", json=body)
        for body in ({"model": MODEL_ID, "prompt": {"a": PROMPT}}, {"prompt": PROMPT}, [PROMPT]):
            await self.sent(self.api, "POST", "/v1/completions", json=body)
        prompt = PROMPT.encode()
        for content in (b'{"prompt": "' + prompt, prompt, b"\xff" + prompt, prompt * 200_000):
            await self.sent(self.api, "POST", "/v1/completions", content=content)
        for key in WRONG_KEYS:
            for headers in ({"authorization": f"Bearer {key}"}, {"x-api-key": key}):
                for path in ("/v1/models", f"{self._admin_url}/admin/v1/tenants"):
                    refused = await self.sent(self._bare, "GET", path, headers=headers)
                    assert refused.status_code == 401
        await self.sent(self.admin, "POST", "/tenants", json={"slug": "globex", "limits": VALUE})
        await self.sent(self.admin, "POST", "/prices", json={"currency": VALUE, "input": VALUE})
        await self.sent(
            self.admin,
            "POST",
            "/tenants",
            json={"slug": "globex"},
            headers={"idempotency-key": IDEMPOTENCY_KEY * 20},
        )
        files = adapter_files(self._base)
        await self._upload(files | {"adapter_config.json": adapter_config(r=CONFIG)})
        await self._upload(files | {"adapter_config.json": f'{{"{CONFIG}'.encode()})
        await self._upload(files | {"adapter_model.safetensors": CONFIG.encode() * 100})

    async def _upload(self, files: Mapping[str, bytes]) -> None:
        await self.sent(self.api, "POST", "/v1/adapters", json={"name": "bot"})
        await self.sent(
            self.api,
            "POST",
            "/v1/adapters/bot/versions",
            params={"wait": 30},
            files={name: (name, content) for name, content in files.items()},
        )

    async def _leave(self, chat: Mapping[str, Any]) -> None:
        body = {**chat, "stream": True, "max_tokens": 100}
        async with self.api.stream("POST", "/v1/chat/completions", json=body) as answer:
            async for _ in answer.aiter_bytes():
                return

    def _note(self, answer: Mapping[str, Any]) -> None:
        for choice in answer["choices"]:
            said = choice.get("text") or choice.get("message", {}).get("content") or ""
            if len(said.strip()) >= MIN_ANSWER_CHARS:
                self.answers.append(said)


@pytest.fixture(scope="module")
def database_of_canaries(
    postgres: PostgresServer, registry_template: str
) -> Iterator[TestDatabase]:
    yield from new_database(postgres, f"TEMPLATE {registry_template} STRATEGY wal_log")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("canaries")


@pytest.fixture(scope="module")
def stack(
    database_of_canaries: TestDatabase, tiny_base_folder: Path, folder: Path
) -> Iterator[Stack]:
    """An API process, a stub engine, and a worker in its own role."""
    settings = Settings(
        database_url=database_of_canaries.app_url,
        redis_url="redis://none",
        queue_secret=SecretStr(QUEUE_SECRET),
        model=tiny_base_folder,
        adapter_store=str(folder / "store"),
        data_dir=folder / "data",
        key_pepper=SecretStr(PEPPER),
        admin_key=SecretStr(ADMIN_KEY),
    )
    command = ("tests.stub_engine", "--step-ms", "5", "--model", str(tiny_base_folder))
    worker = {"TENFOLD_DATABASE_URL": database_of_canaries.worker_url}
    api = {"TENFOLD_ADMIN_KEY": ADMIN_KEY}
    with Stack(
        settings,
        folder / "stack",
        command,
        num_engines=1,
        worker_options=worker,
        api_options=api,
    ) as running:
        yield running


@pytest.fixture
async def scene(stack: Stack, tiny_base: BaseSpec) -> AsyncIterator[Scene]:
    opened = Scene(stack, tiny_base)
    await opened.open()
    yield opened
    await opened.close()


async def dump(database: TestDatabase) -> bytes:
    """Every row of every table, as text."""
    owner = Database(database.owner_url, pool_size=1)
    async with owner.session() as session:
        names = await session.scalars(
            text("SELECT tablename FROM pg_tables WHERE schemaname IN ('public')")
        )
        rows = [
            row
            for name in list(names)
            for row in await session.scalars(text(f"SELECT t::text FROM {name} t"))
        ]
    await owner.close()
    return "\n".join(rows).encode()


def read_logs(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.rglob("*.log")}


@pytest.mark.timeout(240)
async def test_no_canary_is_in_a_log_a_metric_an_error_or_a_table(
    scene: Scene,
    stack: Stack,
    folder: Path,
    database_of_canaries: TestDatabase,
    record_property: Any,
) -> None:
    await scene.serve()
    await scene.refuse()
    owner = Database(database_of_canaries.owner_url, pool_size=1)

    async def is_written() -> bool:
        async with owner.session() as session:
            query = text("SELECT count(*) FROM requests WHERE state = 'accepted'")
            return await session.scalar(query) == 0

    await eventually(is_written, timeout_s=60)
    await owner.close()

    passwords = [
        make_url(url).password or ""
        for url in (database_of_canaries.app_url, database_of_canaries.worker_url)
    ]
    canaries = {
        "prompt": PROMPT,
        "bad value": VALUE,
        "adapter": CONFIG,
        "idempotency key": IDEMPOTENCY_KEY,
        "pepper": PEPPER,
        "queue secret": QUEUE_SECRET,
        "admin key": ADMIN_KEY,
        "redis password": "of-the-faults",
        **{f"wrong key {i}": key for i, key in enumerate(WRONG_KEYS)},
        **{f"key {i}": secret for i, secret in enumerate(scene.secrets)},
        **{f"database password {i}": each for i, each in enumerate(passwords)},
        **{f"answer {i}": each for i, each in enumerate(scene.answers)},
    }
    logs = read_logs(folder)
    assert {"worker.log", "api-0.log", "engine-0-0.log"} <= logs.keys()
    assert len(logs["api-0.log"]) > 10_000 and len(scene.refusals) > 25 and scene.answers
    told = {name: value for name, value in canaries.items() if name not in ("adapter", "bad value")}
    found = [
        *(f"{name}: {hit}" for name, log in logs.items() for hit in hits(canaries, log)),
        *(f"metrics: {hit}" for hit in hits(canaries, await scene.metrics())),
        *(f"refusal: {hit}" for body in scene.refusals for hit in hits(told, body)),
        *(f"table: {hit}" for hit in hits(told, await dump(database_of_canaries))),
    ]
    record_property("canaries found", len(found))
    assert found == []


@pytest.mark.parametrize("spelled", [str, json.dumps, lambda each: each.encode().hex(), quote])
def test_control_a_canary_that_got_out_is_found(spelled: Any, tmp_path: Path) -> None:
    canaries = {"prompt": PROMPT, "key": WRONG_KEYS[0]}
    for name, canary in canaries.items():
        leaked = f'{{"event": "x", "detail": "{spelled(canary)}"}}'.encode()
        assert hits(canaries, leaked) == [name]
    assert hits(canaries, b'{"event": "x"}') == []


@pytest.mark.parametrize("begin", range(6))
def test_control_a_canary_within_base_64_is_found(begin: int) -> None:
    leaked = base64.b64encode(b"x" * begin + PROMPT.encode() + b"yyyy")
    assert hits({"prompt": PROMPT}, leaked) == ["prompt"]
