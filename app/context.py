"""What an API process holds for its whole life: settings, connections, the base's description.

Knows nothing of requests. Invariant: made once, by `open_context`, and handed to both
applications; nothing here changes while they serve.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from typing import Annotated, cast

from fastapi import Depends, Request
from opentelemetry.trace import Tracer

from app.adapters.downloading import DownloadSlots
from app.adapters.turns import Turns
from app.adapters.validator import Validator
from app.admission.service import Admission
from app.admission.settlement import load_spend
from app.availability import Availability
from app.chat_templates.sandbox import TemplateSandbox
from app.chat_templates.versions import VersionTemplates
from app.completions.tokenizer import Tokenizer
from app.completions.turnstile import Turnstile
from app.db import Database
from app.draining import Drain
from app.files.vault import FileVault, open_vault
from app.metrics.answers import AnswerMetrics
from app.metrics.api import ApiMetrics
from app.registry_snapshot import RegistrySnapshot
from app.requests.acceptance import Acceptance
from app.revocations import Revocations
from app.rollouts.evaluation_slots import EvaluationSlots
from app.rollouts.samples import SampleBook
from app.rollouts.shadowing import Shadows
from app.settings import Settings
from engine.tracing import open_tracing
from engine.transport.client import QueueClient
from engine.transport.levers import EngineLevers
from lora.base_spec import BaseSpec
from lora.store import AdapterStore
from lora.store_open import open_parts, open_store
from lora.store_parts import PartStore

NUM_WARM_CONNECTIONS = 4
STATEMENT_TIMEOUT_S = 5.0
REGISTRY_SHARE = 0.5  # of a request's patience with Postgres; its acceptance has a quarter then

Clock = Callable[[], datetime]


@dataclass(frozen=True, slots=True)
class AppContext:
    settings: Settings
    database: Database
    registry: RegistrySnapshot
    revocations: Revocations
    store: AdapterStore
    parts: PartStore
    base: BaseSpec
    tokenizer: Tokenizer
    sandbox: TemplateSandbox
    templates: VersionTemplates
    queue: QueueClient
    levers: EngineLevers
    samples: SampleBook
    shadows: Shadows
    redis: Availability
    admission: Admission
    acceptance: Acceptance
    metrics: ApiMetrics
    answers: AnswerMetrics
    tracer: Tracer
    drain: Drain
    now: Clock
    vault: FileVault | None = None
    validator: Validator = field(default_factory=Validator)
    keeping: Turns = field(default_factory=Turns)
    turnstile: Turnstile = field(default_factory=Turnstile)
    downloads: DownloadSlots = field(default_factory=DownloadSlots)
    evaluations: EvaluationSlots = field(default_factory=EvaluationSlots)


@asynccontextmanager
async def open_context(
    settings: Settings, now: Clock | None = None, *, keeps_tier: bool = False
) -> AsyncIterator[AppContext]:
    """Connect to everything; `now` (for key expiry) defaults to the system's clock.

    keeps_tier: of `QueueClient`.
    """
    tracing = open_tracing("api", settings.otlp_endpoint)
    metrics = ApiMetrics(settings.metrics_top_tenants)
    base = await asyncio.to_thread(BaseSpec.from_folder, settings.model, settings.model_id)
    tokenizer = await asyncio.to_thread(Tokenizer.from_folder, settings.model)
    sandbox = TemplateSandbox(tokenizer.special_tokens)
    database = Database(
        settings.database_url,
        pool_size=settings.database_pool_size,
        statement_timeout_s=STATEMENT_TIMEOUT_S,
    )
    store = open_store(
        settings.adapter_store,
        cache=settings.adapter_copies,
        max_cache_bytes=settings.adapter_cache_bytes,
    )
    timeout_s = settings.dependency_timeout_s
    registry = Availability("registry", database.ping, timeout_s=REGISTRY_SHARE * timeout_s)
    queue = QueueClient(
        settings.redis_url,
        settings.api_id,
        secret=settings.queue_secret.get_secret_value(),
        failover_timeout_s=settings.failover_timeout_s,
        keeps_tier=keeps_tier,
    )
    levers = EngineLevers(settings.redis_url, secret=settings.queue_secret.get_secret_value())
    samples = SampleBook(settings.redis_url)
    shadows = Shadows(tokenizer, queue, samples, now or utc_now)
    snapshot = RegistrySnapshot(registry)
    revocations = Revocations(settings.redis_url, snapshot.forget)
    redis = Availability("redis", queue.num_engines, timeout_s=timeout_s)
    admission = Admission(settings.redis_url, partial(load_spend, database))
    acceptance = Acceptance(settings.database_url, timeout_s=settings.dependency_timeout_s)
    try:
        await queue.start()
        await acceptance.start()
        await revocations.start()
        await database.warm_up(min(NUM_WARM_CONNECTIONS, settings.database_pool_size))
        yield AppContext(
            settings=settings,
            database=database,
            registry=snapshot,
            revocations=revocations,
            store=store,
            parts=open_parts(settings.adapter_store),
            base=base,
            tokenizer=tokenizer,
            sandbox=sandbox,
            templates=VersionTemplates(store, sandbox),
            queue=queue,
            levers=levers,
            samples=samples,
            shadows=shadows,
            redis=redis,
            admission=admission,
            acceptance=acceptance,
            metrics=metrics,
            answers=metrics.answers,
            tracer=tracing.tracer,
            drain=Drain(delay_s=settings.drain_delay_s, limit_s=settings.drain_s),
            now=now or utc_now,
            vault=open_vault(settings),
        )
    finally:
        await revocations.close()
        await acceptance.close()
        await registry.close()
        await redis.close()
        await admission.close()
        await shadows.close()
        await samples.close()
        await levers.close()
        await queue.close()
        await sandbox.close()
        await database.close()
        await asyncio.to_thread(tracing.close)


def utc_now() -> datetime:
    return datetime.now(UTC)


def get_context(request: Request) -> AppContext:
    """FastAPI dependency: the process's context."""
    return cast(AppContext, request.app.state.ctx)


Context = Annotated[AppContext, Depends(get_context)]
"""Of an endpoint's argument."""
