"""Renders conversations with the templates that versions brought with them.

Knows nothing of requests. Invariants: a template is the bytes that the version was accepted with;
whatever it does is said under one code (`chat_template_failed`), as the template's doing and not
the server's; what is kept is known by its owner and its SHA-256, is never stale, and is forgotten
when nobody has used it for a while.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Any

from app.adapters.storage_errors import storage_errors
from app.chat_templates.kept import Kept
from app.chat_templates.messages import Problem
from app.chat_templates.process import SandboxError
from app.chat_templates.sandbox import SandboxBusyError, TemplateSandbox, TemplateSource
from app.completions.prompting import Render
from app.errors import BadRequestError, UnavailableError
from engine.messages import AdapterRef
from lora.findings import clean
from lora.store import (
    CHAT_TEMPLATE_FILE,
    AdapterCorruptError,
    AdapterMissingError,
    AdapterStore,
)

MAX_KEPT = 256  # of at most 64 KiB each
# After the last use: a version that was deleted is used no more, so that nothing is left of its
# text before its bytes go, or soon after where they go at once.
KEPT_S = 60.0
FETCH_S = 10.0

TEMPLATE_FAILED = "chat_template_failed"

# What is the matter with a template, after "the adapter's own chat template".
_PROBLEMS: dict[Problem, str] = {
    "refused": "refuses this conversation",
    "failed": "failed on this conversation",
    "too_long": "makes more text of this conversation than the model's context holds",
    "memory": "takes more memory than it may",
    "time": "takes more time than it may",
}


def template_of(files: Iterable[Mapping[str, Any]]) -> str | None:
    """The SHA-256 of the chat template among a version's files, if there is one."""
    return next((file["sha256"] for file in files if file["name"] == CHAT_TEMPLATE_FILE), None)


class VersionTemplates:
    """Of one process."""

    def __init__(
        self, store: AdapterStore, sandbox: TemplateSandbox, *, kept_s: float = KEPT_S
    ) -> None:
        self._store = store
        self._sandbox = sandbox
        self._kept: Kept[tuple[str, str], TemplateSource] = Kept(MAX_KEPT, kept_s)

    def render_of(self, adapter: AdapterRef | None, sha256: str | None) -> Render | None:
        """How conversations become prompts of a version; None: through the base's own template.

        sha256: of the chat template that the version brought with it, if it did.
        """
        if adapter is None or sha256 is None:
            return None
        return partial(self.render, adapter, sha256)

    async def render(
        self,
        adapter: AdapterRef,
        sha256: str,
        messages: Sequence[Mapping[str, Any]],
        variables: Mapping[str, Any],
        max_chars: int,
    ) -> str:
        """The prompt that the template of `adapter`, which is `sha256`, makes of the messages.

        Raises BadRequestError `chat_template_failed`; UnavailableError where the template cannot be
        read, or no process can be made for it in time.
        """
        source = await self._source(adapter, sha256)
        try:
            answer = await self._sandbox.render(source, messages, variables, max_chars)
        except SandboxBusyError as error:
            raise UnavailableError(
                "Too many conversations wait for this adapter's chat template. Try again later.",
                code="overloaded",
            ) from error
        except SandboxError as error:
            raise UnavailableError(internal=f"chat template: {error}") from error
        if answer.text is None:
            what = f"The adapter's own chat template {_PROBLEMS[answer.problem or 'failed']}."
            said = clean(answer.message)
            raise BadRequestError(
                f"{what[:-1]}: {said}" if said else what,
                code=TEMPLATE_FAILED,
                param="messages",
            )
        return answer.text

    async def _source(self, adapter: AdapterRef, sha256: str) -> TemplateSource:
        key = (adapter.tenant_id, sha256)
        found = self._kept.use(key)
        if found is None:
            text = await self._fetch(adapter.locator, sha256)
            found = TemplateSource(adapter.tenant_id, sha256, text)
            self._kept.put(key, found)
        return found

    async def _fetch(self, locator: str, sha256: str) -> str:
        try:
            with storage_errors():
                async with asyncio.timeout(FETCH_S):
                    return await asyncio.to_thread(self._read, locator, sha256)
        except AdapterMissingError as error:
            code, internal = "adapter_missing", str(error)
        except AdapterCorruptError as error:
            code, internal = "adapter_corrupt", str(error)
        raise UnavailableError(
            "The adapter's chat template cannot be read.", code=code, internal=internal
        )

    def _read(self, locator: str, sha256: str) -> str:
        content = self._store.read(locator, CHAT_TEMPLATE_FILE)
        if hashlib.sha256(content).hexdigest() != sha256:
            raise AdapterCorruptError(f"the chat template of {locator} is not {sha256}")
        return content.decode()  # it was text when it was accepted
