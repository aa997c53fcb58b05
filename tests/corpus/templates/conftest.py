"""A tenant whose adapter's versions bring templates, and an engine that says back what it reads."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from typing import Any

import httpx
import psutil
import pytest

from app.chat_templates.sandbox import ZYGOTE, TemplateSandbox
from app.context import AppContext
from engine.messages import EngineRequest
from lora.base_spec import BaseSpec
from lora.store import CHAT_TEMPLATE_FILE
from tests.builders.adapter_files import adapter_files
from tests.builders.operator import Operator, Tenant
from tests.builders.stub_engine import StubEngine

BOT = "/tenants/acme/adapters/bot"
Files = dict[str, bytes]
Push = Callable[..., Awaitable[dict[str, Any]]]
Ask = Callable[..., Awaitable[httpx.Response]]
Read = Callable[[EngineRequest], str]


@pytest.fixture
async def sandbox() -> AsyncIterator[TemplateSandbox]:
    opened = TemplateSandbox({"bos_token": "<s>"})
    yield opened
    await opened.close()


@pytest.fixture
def with_template(tiny_base: BaseSpec) -> Callable[..., Files]:
    """An adapter's files; the weights are the seed's."""

    def with_template(template: str | bytes | None, seed: int = 1) -> Files:
        files = adapter_files(tiny_base, rank=1, seed=seed)
        if template is not None:
            content = template if isinstance(template, bytes) else template.encode()
            files[CHAT_TEMPLATE_FILE] = content
        return files

    return with_template


@pytest.fixture
def push(operator: Operator, acme: Tenant, with_template: Callable[..., Files]) -> Push:
    async def push(template: str | None, seed: int = 1) -> dict[str, Any]:
        return await operator.push("acme", "bot", with_template(template, seed))

    return push


@pytest.fixture
def engine(redis_url: str) -> Iterator[StubEngine]:
    with StubEngine(redis_url) as running:
        yield running


@pytest.fixture
def ask(api: httpx.AsyncClient, acme: Tenant) -> Ask:
    async def ask(content: str = "Hi", model: str = "bot", **fields: Any) -> httpx.Response:
        messages = [{"role": "user", "content": content}]
        body = {"model": model, "messages": messages, "max_tokens": 2, **fields}
        return await api.post("/v1/chat/completions", json=body, headers=acme.headers)

    return ask


@pytest.fixture
def read(context: AppContext) -> Read:
    """The text of a request's prompt."""
    tokenizer = context.tokenizer.model
    return lambda request: tokenizer.decode(request.prompt_token_ids, skip_special_tokens=False)


def template_processes() -> list[psutil.Process]:
    """Those that render, or wait for something to be rendered."""
    zygotes = [each for each in psutil.Process().children() if ZYGOTE in _command(each)]
    return [child for zygote in zygotes for child in zygote.children()]


def _command(process: psutil.Process) -> list[str]:
    try:
        return process.cmdline()
    except psutil.NoSuchProcess:
        return []
