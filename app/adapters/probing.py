"""Asks a version one prompt, so that an operator sees what it says before anybody else does.

Knows nothing of HTTP. Invariants: it is a trial (`app.completions.trial`), which nobody is billed
for; no registry connection is held while an engine is asked; that it was asked is in the audit log,
and what was asked and answered is nowhere.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from app.adapters.residency import adapter_ref, find_at_tenant
from app.adapters.states import refuse_unloadable
from app.audit.trail import AuditTrail
from app.chat_templates.versions import template_of
from app.completions.trial import NotAnsweredError, TrialAnswer, TriedVersion, trials_of
from app.context import AppContext
from app.db import tenant_scope
from app.errors import UnavailableError
from app.tables import AdapterVersion
from engine.messages import EngineError

TIMEOUT_S = 60.0


@dataclass(frozen=True, slots=True)
class Question:
    """Either of `prompt` and `messages`."""

    prompt: str | None
    messages: Sequence[Mapping[str, Any]] | None
    max_tokens: int


@dataclass(frozen=True, slots=True)
class Probed:
    """`answer`: what it said, or what an engine said of it."""

    version: AdapterVersion
    num_prompt_tokens: int
    answer: TrialAnswer | EngineError


async def probe(
    context: AppContext,
    tenant_id: str,
    adapter: str,
    version: str,
    question: Question,
    trail: AuditTrail,
) -> Probed:
    """Raises NotFoundError, ConflictError (`version_not_active`), BadRequestError for what cannot
    be asked, or UnavailableError where no engine answered.
    """
    async with context.database.session() as session:
        found = await find_at_tenant(session, tenant_id, adapter, version)
    refuse_unloadable(found)
    trials, tried = trials_of(context), tried_version(found)
    token_ids = await trials.tokens_of(
        tried, question.prompt, question.messages, question.max_tokens
    )
    try:
        answer = await trials.answer(
            tried, token_ids, max_tokens=question.max_tokens, timeout_s=TIMEOUT_S
        )
    except NotAnsweredError as error:
        raise UnavailableError(
            "No engine has answered. Try again later.", internal=str(error)
        ) from error
    probed = Probed(found, len(token_ids), answer)
    async with context.database.session() as session:
        await tenant_scope(session, tenant_id)
        await trail.record(session, tenant_id, "version.probed", found.id, after=_shown(probed))
        await session.commit()
    return probed


def tried_version(version: AdapterVersion) -> TriedVersion:
    return TriedVersion(adapter_ref(version), template_of(version.files))


def _shown(probed: Probed) -> dict[str, Any]:
    """For the audit log: not a word of it."""
    answer = probed.answer
    return {
        "version": f"v{probed.version.number}",
        "digest": probed.version.digest,
        "finish_reason": answer.finish_reason if isinstance(answer, TrialAnswer) else answer.code,
        "num_prompt_tokens": probed.num_prompt_tokens,
    }
