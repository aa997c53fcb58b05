"""Finds and verifies the chains of the audit log, for operators.

Knows nothing of HTTP. Invariant: a chain is followed up to where it ended at one moment, so that
what is appended meanwhile is no finding.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Sequence

from sqlalchemy.ext.asyncio import AsyncSession

from app.audit.chain import Verifier
from app.audit.repository import AuditRepository, list_heads
from app.audit.trail import FLEET, TENANT_CREATED
from app.db import operator_scope, tenant_scope
from app.pages import PageQuery
from app.tenants.service import find_tenant

BATCH = 5000
BEFORE_ALL = -(1 << 63)  # also before what somebody may have put in front of a chain
_TENANT_ID = re.compile(r"ten_[0-9a-z]{26}")


async def find_chain(session: AsyncSession, reference: str) -> str:
    """The chain of `fleet`, or of a tenant by id or slug; of one that is deleted, by its id.

    Leaves the session in its scope. Raises NotFoundError.
    """
    if reference == FLEET or _TENANT_ID.fullmatch(reference):
        await tenant_scope(session, reference)
        head, last_seq = await AuditRepository(session, reference).get_end()
        if reference == FLEET or head is not None or last_seq:
            return reference
    return (await find_tenant(session, reference)).id


async def verify_chain(
    session: AsyncSession,
    keys: Sequence[bytes],
    chain_id: str,
    kept: tuple[int, str] | None = None,
) -> Verifier:
    """Follow a chain from its first event to its head, and past `kept`: (seq, mac), if given.

    keys: of `app.audit.chain.audit_keys`.
    """
    await tenant_scope(session, chain_id)
    chain = AuditRepository(session, chain_id)
    verifier = Verifier(keys, kept)
    head, last_seq = await chain.get_end()
    tenant_ids: set[str] = set()
    after = BEFORE_ALL
    while links := await chain.list_links(after, last_seq, BATCH):
        await asyncio.to_thread(verifier.take, links)
        tenant_ids |= {link.target for link in links if link.action == TENANT_CREATED}
        after = links[-1].seq
    verifier.finish(head)
    if chain_id == FLEET:
        for tenant_id in sorted(tenant_ids - await _chains(session)):
            verifier.find(f"the chain of {tenant_id} is gone")
    return verifier


async def _chains(session: AsyncSession) -> set[str]:
    """Whose chains there are."""
    await operator_scope(session)
    found: set[str] = set()
    after = None
    while heads := await list_heads(session, PageQuery(after, BATCH)):
        found |= {head.tenant_id for head in heads}
        after = heads[-1].tenant_id
    return found
