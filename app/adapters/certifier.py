"""Tries an adapter on an engine, over the real queue, and certifies what came of it.

Knows nothing of rows or jobs. A trial is a handful of golden prompts, each once with the base and
once with the adapter, at the lowest service tier; the engine that loads the adapter measures a few
of its modules on the way (`engine/module_check.py`). Invariants: a certificate is issued for
figures that were measured, and for no others; nobody is billed; where no engine answers nothing is
said of the adapter.
"""

from __future__ import annotations

import asyncio
import secrets
import uuid
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Protocol

import structlog

from app.settings import WorkerSettings
from engine.messages import AdapterRef, EngineError, Evidence
from engine.transport.certificates import MAX_MODULE_ERROR, Certificates, Figures
from engine.transport.client import QueueClient
from engine.transport.errors import QueueUnavailableError
from engine.transport.golden import golden_prompts, largest_change, trial_request
from lora.base_spec import BaseSpec
from lora.findings import Finding

log = structlog.get_logger()

QUEUE_TIMEOUT_S = 10.0
TRIAL_TIMEOUT_S = 25.0  # all of it; a worker that is told to end waits no longer

# What an engine says of the adapter itself, and the rule that it broke.
_REFUSALS = {
    "nonfinite_logits": "canary_nonfinite",
    "adapter_corrupt": "adapter_corrupt",
    "adapter_load_failed": "adapter_load_failed",
    "adapter_too_large": "adapter_too_large",
    # The base answered the same prompts: what is too much for the pool is the adapter.
    "request_too_large": "adapter_too_large",
}


class NotTriedError(Exception):
    """No engine tried the adapter; it may be tried later."""


@dataclass(frozen=True, slots=True)
class Trial:
    """What came of it. `certificate` and `figures`: of an adapter that may be served."""

    findings: tuple[Finding, ...]
    certificate: str | None = None
    figures: Figures | None = None


class Certifier(Protocol):
    """What a worker's checks need."""

    async def certify(self, tenant_id: str, digest: str, locator: str) -> Trial:
        """Try one adapter. Raises NotTriedError."""
        ...

    def is_valid(self, digest: str, certificate: str) -> bool:
        """Whether `certificate` is one that engines go by."""
        ...


class QueueCertifier:
    """A `Certifier` in front of the engines that serve."""

    def __init__(self, queue: QueueClient, certificates: Certificates, base: BaseSpec) -> None:
        self._queue = queue
        self._certificates = certificates
        self._prompts = golden_prompts(base)

    async def certify(self, tenant_id: str, digest: str, locator: str) -> Trial:
        adapter = AdapterRef(tenant_id=tenant_id, digest=digest, locator=locator, is_on_trial=True)
        try:
            if await self._queue.num_engines() == 0:
                raise NotTriedError("no engine")
            answers = await self._ask_all(adapter)
        except QueueUnavailableError as error:
            raise NotTriedError(str(error)) from error
        for answer in answers:
            if isinstance(answer, EngineError) and answer.code not in _REFUSALS:
                raise NotTriedError(answer.code)
        num_prompts = len(self._prompts)
        return self._judge(digest, answers[:num_prompts], answers[num_prompts:])

    def is_valid(self, digest: str, certificate: str) -> bool:
        return self._certificates.is_valid(digest, certificate)

    def _judge(
        self,
        digest: str,
        base: Sequence[Evidence | EngineError],
        changed: Sequence[Evidence | EngineError],
    ) -> Trial:
        if any(isinstance(answer, EngineError) for answer in base):
            raise NotTriedError("the base failed")
        failed = next((each for each in changed if isinstance(each, EngineError)), None)
        if failed is not None:
            return Trial((Finding(_REFUSALS[failed.code], "error", failed.message),))
        pairs = [
            (before, after)
            for before, after in zip(base, changed, strict=True)
            if isinstance(before, Evidence) and isinstance(after, Evidence)
        ]
        measured = [after.modules for _, after in pairs if after.modules is not None]
        if not measured:
            raise NotTriedError("its modules were not measured")
        figures = Figures(
            golden=tuple(largest_change(*pair) for pair in pairs),
            modules=next((modules for modules in measured if modules), ()),
        )
        return self._certified(digest, figures)

    def _certified(self, digest: str, figures: Figures) -> Trial:
        inexact = [each for each in figures.modules if not each.error <= MAX_MODULE_ERROR]
        if inexact:  # our own mistake, whatever the adapter is: somebody should look
            log.error("adapter_inexact", digest=digest, module=inexact[0].module)
            message = f"{inexact[0].module} is not served as it was trained."
            return Trial((Finding("adapter_inexact", "error", message),))
        findings: tuple[Finding, ...] = ()
        if figures.is_without_effect:
            message = "With it the model gives the base's own scores on every golden prompt."
            findings = (Finding("no_effect", "warning", message),)
        return Trial(findings, self._certificates.issue(digest, figures), figures)

    async def _ask_all(self, adapter: AdapterRef) -> list[Evidence | EngineError]:
        """What each golden prompt came to: first with the base, then with the adapter."""
        asked = [self._ask(prompt, each) for each in (None, adapter) for prompt in self._prompts]
        answers: list[Evidence | EngineError] = []
        for answer in await asyncio.gather(*asked, return_exceptions=True):
            if isinstance(answer, BaseException):
                raise answer
            answers.append(answer)
        return answers

    async def _ask(self, prompt: list[int], adapter: AdapterRef | None) -> Evidence | EngineError:
        request = trial_request(f"{uuid.uuid4().hex}-0", self._queue.api_id, prompt, adapter)
        try:
            async with (
                asyncio.timeout(TRIAL_TIMEOUT_S),
                await self._queue.submit(request, queue_timeout_s=QUEUE_TIMEOUT_S) as stream,
            ):
                async for output in stream:
                    if output.error is not None:
                        return output.error
                    if output.evidence is not None:
                        return output.evidence
        except TimeoutError as error:
            raise NotTriedError("an engine took too long") from error
        raise NotTriedError("an engine gave no evidence")


@asynccontextmanager
async def open_certifier(settings: WorkerSettings, base: BaseSpec) -> AsyncIterator[Certifier]:
    """A certifier with an end of the queue of its own."""
    secret = settings.queue_secret.get_secret_value()
    queue = QueueClient(settings.redis_url, f"worker-{secrets.token_hex(6)}", secret=secret)
    try:
        await queue.start()
        yield QueueCertifier(queue, Certificates(secret, base.fingerprint), base)
    finally:
        await queue.close()
