"""Asks a version the golden prompts that it brought; and the base, and what `prod` means now.

Knows nothing of HTTP. Invariants: these are trials (`app.completions.trial`), which nobody is
billed for, and they count against their tenant's day; no registry connection is held while engines
are asked; what came of it is kept with the version and is in the audit log, and no word of what was
asked or answered is; one process does a few at a time, and of one tenant's one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from sqlalchemy.ext.asyncio import AsyncSession

from app.adapters.alias_repository import AliasRepository
from app.adapters.names import DEFAULT_ALIAS
from app.adapters.probing import tried_version
from app.adapters.residency import find_at_tenant
from app.adapters.service import lock_adapter
from app.adapters.states import LOADABLE, refuse_unloadable
from app.adapters.versions_repository import VersionRepository
from app.audit.trail import AuditTrail
from app.completions.trial import BASE, NotAnsweredError, TriedVersion, trials_of
from app.context import AppContext
from app.db import tenant_scope
from app.errors import BadRequestError, UnavailableError
from app.rollouts.golden_asking import Asker, CannotBeAskedError
from app.rollouts.golden_intake import GoldenIntake, check_prompts
from app.rollouts.golden_own import own_prompts
from app.rollouts.golden_schemas import GoldenPrompt
from app.tables import AdapterVersion

EVALUATE_S = 120.0


@dataclass(frozen=True, slots=True)
class Evaluation:
    """Of `num` prompts, by their places from 0 on: those that each failed. `asked_s`: since 1970.

    `prod`: the version that the alias means most often, `v3`; None where that is no other one.
    """

    num: int
    asked_s: float
    failed: list[int]
    failed_by_base: list[int]
    prod: str | None = None
    failed_by_prod: list[int] | None = None


@dataclass(frozen=True, slots=True)
class Evaluated:
    version: AdapterVersion
    evaluation: Evaluation


async def evaluate(
    context: AppContext, tenant_id: str, adapter: str, version: str, trail: AuditTrail
) -> Evaluated:
    """Raises NotFoundError, ConflictError (`version_not_active`), BadRequestError (`eval_missing`,
    or for prompts that cannot be asked), RateLimitedError while another is under way,
    QuotaExceededError, or UnavailableError where too many are under way (`overloaded`), or engines
    have not answered all of them in time: then nothing is kept.
    """
    async with context.database.session() as session:
        found = await find_at_tenant(session, tenant_id, adapter, version)
        prod = await _prod(session, found)
    refuse_unloadable(found)
    with context.evaluations.hold(tenant_id):
        return await _evaluate(context, found, prod, trail)


async def _evaluate(
    context: AppContext, found: AdapterVersion, prod: AdapterVersion | None, trail: AuditTrail
) -> Evaluated:
    tenant_id = found.tenant_id
    prompts = await own_prompts(context.store, found, param="version")
    await check_prompts(trials_of(context), prompts)
    asked = [tried_version(found), BASE, *([] if prod is None else [tried_version(prod)])]
    async with context.database.session() as session:
        await tenant_scope(session, tenant_id)
        num_asked = len(prompts) * len(asked)
        await GoldenIntake.of(context).count(session, tenant_id, num_asked, trail.at)
    failed, by_base, *by_prod = await _failures(Asker(trials_of(context)), prompts, asked)
    evaluation = Evaluation(
        len(prompts),
        context.now().timestamp(),
        [*failed],
        [*by_base],
        prod=None if prod is None else f"v{prod.number}",
        failed_by_prod=[*by_prod[0]] if by_prod else None,
    )
    async with context.database.session() as session:
        await tenant_scope(session, tenant_id)
        kept = await _keep(session, tenant_id, found, evaluation, trail)
        await session.commit()
    return Evaluated(kept, evaluation)


async def _prod(session: AsyncSession, version: AdapterVersion) -> AdapterVersion | None:
    """What `prod` means most often, where that is another version that an engine may load."""
    aliases = AliasRepository(session, version.tenant_id)
    pointing = await aliases.get(version.adapter_id, DEFAULT_ALIAS)
    if pointing is None or pointing.primary.version_id == version.id:
        return None
    found = await VersionRepository(session, version.tenant_id).get(pointing.primary.version_id)
    return found if found is not None and found.state in LOADABLE else None


async def _failures(
    asker: Asker, prompts: Sequence[GoldenPrompt], versions: Sequence[TriedVersion]
) -> list[tuple[int, ...]]:
    try:
        async with asyncio.timeout(EVALUATE_S):
            return await asker.failures(prompts, versions)
    except CannotBeAskedError as error:
        raise BadRequestError(
            f"The golden prompts cannot be asked: {error}.", code="eval_invalid", param="version"
        ) from error
    except (NotAnsweredError, TimeoutError) as error:
        raise UnavailableError(
            "Engines have not answered all prompts. Try again later.",
            internal=f"evaluation: {error or 'slow'}",
        ) from error


async def _keep(
    session: AsyncSession,
    tenant_id: str,
    version: AdapterVersion,
    evaluation: Evaluation,
    trail: AuditTrail,
) -> AdapterVersion:
    """Raises NotFoundError where the adapter is gone meanwhile."""
    await lock_adapter(session, tenant_id, version.adapter_id)
    kept = await VersionRepository(session, tenant_id).lock(version.id)
    kept.report = {**kept.report, "eval": asdict(evaluation)}
    await session.flush()
    await trail.record(
        session, tenant_id, "version.evaluated", kept.id, after=_described(kept, evaluation)
    )
    return kept


def _described(version: AdapterVersion, evaluation: Evaluation) -> Mapping[str, Any]:
    """For the audit log."""
    by_prod = evaluation.failed_by_prod
    return {
        "version": f"v{version.number}",
        "digest": version.digest,
        "num": evaluation.num,
        "num_failed": len(evaluation.failed),
        "num_failed_by_base": len(evaluation.failed_by_base),
        "prod": evaluation.prod,
        "num_failed_by_prod": None if by_prod is None else len(by_prod),
    }
