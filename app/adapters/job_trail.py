"""What a worker's job did to versions, for the audit log.

Knows nothing of how a job is done. Invariant: a version that a job moved along an edge of `EDGES`
has that edge in its tenant's chain, in the transaction that moved it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from sqlalchemy.ext.asyncio import AsyncSession

from app.adapters.schemas import describe_version
from app.adapters.states import EDGES
from app.adapters.versions_repository import VersionRepository
from app.audit.trail import AuditTrail
from app.tables import AdapterJob, AdapterVersion

TrailOf = Callable[[str], AuditTrail]
"""Of a job, by its id."""


@dataclass(frozen=True, slots=True)
class Watched:
    """A version, as it was before the job."""

    version: AdapterVersion
    state: str
    shown: dict[str, Any]


async def watch(session: AsyncSession, job: AdapterJob) -> list[Watched]:
    """The versions that the job is about. In the tenant's scope."""
    versions = VersionRepository(session, job.tenant_id)
    if job.kind == "verify":
        version = await versions.get(job.subject)
        found = [] if version is None else [version]
    else:
        found = await versions.list_deleting(job.subject)
    return [Watched(each, each.state, describe_version(each)) for each in found]


async def record_moves(session: AsyncSession, watched: list[Watched], trail: AuditTrail) -> None:
    """In the same scope, after the job."""
    for each in watched:
        version = each.version
        action = EDGES.get((each.state, version.state))
        if action is not None:
            after = describe_version(version)
            await trail.record(
                session, version.tenant_id, action, version.id, before=each.shown, after=after
            )
