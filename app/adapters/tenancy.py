"""Whose adapters a request is about: the path's tenant for operators, the key's own for tenants.

Knows nothing of adapters. Invariant: `OwnedSession` is always in the scope of the tenant that the
router's policy established, and there is none without a policy.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from fastapi import Depends, Request
from sqlalchemy.ext.asyncio import AsyncSession

from app.auth import Principal, require_adapters_write, require_operator
from app.context import Context
from app.db import tenant_scope
from app.session import RequestSession
from app.tenants.service import find_tenant


@dataclass(frozen=True, slots=True)
class Owned:
    session: AsyncSession
    tenant_id: str


async def operator_for_tenant(
    request: Request,
    tenant: str,
    context: Context,
    _: Annotated[None, Depends(require_operator)],
) -> None:
    """Policy of the admin router. Raises NotFoundError for an unknown tenant."""
    async with context.database.session() as session:
        request.state.tenant_id = (await find_tenant(session, tenant)).id


def tenant_for_itself(
    request: Request, principal: Annotated[Principal, Depends(require_adapters_write)]
) -> None:
    """Policy of the tenants' router."""
    request.state.tenant_id = principal.tenant_id


def get_tenant_id(request: Request) -> str:
    tenant_id = request.state.tenant_id  # AttributeError, hence 500, where no policy ran
    assert isinstance(tenant_id, str)
    return tenant_id


TenantId = Annotated[str, Depends(get_tenant_id)]


async def get_owned(session: RequestSession, tenant_id: TenantId) -> Owned:
    await tenant_scope(session, tenant_id)
    return Owned(session, tenant_id)


# NOTE: "function" because RequestSession is: it may not outlive what it is made from.
OwnedSession = Annotated[Owned, Depends(get_owned, scope="function")]
