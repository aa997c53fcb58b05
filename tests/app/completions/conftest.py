"""Two tenants with a model of the same name, and an engine that says what a test wants."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import pytest
from fastapi import FastAPI

from app.completions.tokenizer import Tokenizer
from app.context import AppContext
from engine.messages import EngineRequest
from lora.base_spec import BaseSpec
from tests.builders.adapter_files import adapter_files
from tests.builders.operator import Operator, Tenant
from tests.builders.server import serving
from tests.builders.stub_engine import StubEngine

IM_END = 258  # the tiny base's end of a turn
Say = Callable[[str], list[int]]


@pytest.fixture(scope="session")
def tokenizer(demo_base: Path) -> Tokenizer:
    """The tokenizer that the tests of text speak: SmolLM2's own."""
    return Tokenizer.from_folder(demo_base)


@pytest.fixture
async def acme(operator: Operator, tiny_base: BaseSpec) -> Tenant:
    tenant = await operator.new_tenant("acme")
    await operator.new_adapter("acme", "support-bot")
    await operator.push("acme", "support-bot", adapter_files(tiny_base, seed=1))
    return tenant


@pytest.fixture
async def globex(operator: Operator, tiny_base: BaseSpec) -> Tenant:
    tenant = await operator.new_tenant("globex")
    await operator.new_adapter("globex", "support-bot")
    await operator.new_adapter("globex", "globex-only")
    await operator.push("globex", "support-bot", adapter_files(tiny_base, seed=2))
    await operator.push("globex", "globex-only", adapter_files(tiny_base, seed=3))
    return tenant


@pytest.fixture
def say(context: AppContext) -> Say:
    """The tokens of an answer: the text's (one per byte), then the end of the turn."""
    return lambda text: [*context.tokenizer.encode_prompt(text), IM_END]


@pytest.fixture
def engine(redis_url: str, say: Say) -> Iterator[StubEngine]:
    """Answers `Hello there!`, and the prompt's own text to whoever has an adapter."""

    def reply(request: EngineRequest) -> list[int]:
        return say("Hello there!") if request.adapter is None else say("I am an adapter.")

    with StubEngine(redis_url, reply=reply) as stub:
        yield stub


@pytest.fixture
async def base_url(tenant_app: FastAPI) -> AsyncIterator[str]:
    async with serving(tenant_app) as url:
        yield url
