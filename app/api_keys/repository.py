"""The SQL of API keys.

Knows nothing of scopes' meaning or of HTTP. Invariant: every query names the tenant; whose
the presented key is says a function of the registry, and it says no more than that.
"""

from __future__ import annotations

from dataclasses import dataclass

import structlog
from sqlalchemy import delete, exc, select, text, update
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import defer

from app.db import tenant_scope
from app.pages import PageQuery
from app.tables import ApiKey, Plan, Tenant

log = structlog.get_logger()

_ENTER_TENANT_OF_KEY = text("SELECT enter_tenant_of_key(:key_hash)")


@dataclass(frozen=True, slots=True)
class FoundKey:
    key: ApiKey
    tenant: Tenant
    plan: Plan | None


async def find_key_by_hash(session: AsyncSession, key_hash: str) -> FoundKey | None:
    """The key with this HMAC and its tenant. Leaves the session in that tenant's scope, or in none.

    The function of migration 0005 is the only way from a key to a tenant that is not yet known.
    """
    tenant_id = await session.scalar(_ENTER_TENANT_OF_KEY, {"key_hash": key_hash})
    if tenant_id is None:
        return None
    row = (
        await session.execute(
            select(ApiKey, Tenant, Plan)
            .join(Tenant, Tenant.id == ApiKey.tenant_id)
            .outerjoin(Plan, Plan.id == Tenant.plan_id)
            .where(ApiKey.tenant_id == tenant_id, ApiKey.key_hash == key_hash)
        )
    ).one_or_none()
    return None if row is None else FoundKey(row[0], row[1], row[2])


async def find_key_by_id(session: AsyncSession, tenant_id: str, key_id: str) -> FoundKey | None:
    """A key that was found before, as it is now. Enters its tenant's scope.

    Without what it is known by, which a worker may not read.
    """
    await tenant_scope(session, tenant_id)
    row = (
        await session.execute(
            select(ApiKey, Tenant, Plan)
            .options(defer(ApiKey.key_hash, raiseload=True))
            .join(Tenant, Tenant.id == ApiKey.tenant_id)
            .outerjoin(Plan, Plan.id == Tenant.plan_id)
            .where(ApiKey.tenant_id == tenant_id, ApiKey.id == key_id)
        )
    ).one_or_none()
    return None if row is None else FoundKey(row[0], row[1], row[2])


async def rehash_key(session: AsyncSession, key: ApiKey, key_hash: str) -> None:
    """From now on the registry has the key by this HMAC, unless it was changed meanwhile. Commits.

    The session is in the scope of the key's tenant. Where the registry takes no changes, nothing is
    lost: the key is found by the older HMAC again.
    """
    try:
        await session.execute(
            update(ApiKey)
            .where(
                ApiKey.tenant_id == key.tenant_id,
                ApiKey.id == key.id,
                ApiKey.key_hash == key.key_hash,
            )
            .values(key_hash=key_hash)
            .execution_options(synchronize_session=False)
        )
        await session.commit()
    except exc.DBAPIError as error:
        log.warning("key_not_rehashed", key_id=key.id, error=type(error.orig).__name__)
        return
    log.info("key_rehashed", key_id=key.id)


class ApiKeyRepository:
    """One tenant's keys. The session is in this tenant's scope."""

    def __init__(self, session: AsyncSession, tenant_id: str) -> None:
        self._session = session
        self._tenant_id = tenant_id

    async def add(self, key: ApiKey) -> None:
        assert key.tenant_id == self._tenant_id
        self._session.add(key)
        await self._session.flush()

    async def get(self, key_id: str) -> ApiKey | None:
        return await self._session.scalar(
            select(ApiKey).where(ApiKey.tenant_id == self._tenant_id, ApiKey.id == key_id)
        )

    async def lock(self, key_id: str) -> ApiKey | None:
        """The row, locked and read afresh."""
        return await self._session.scalar(
            select(ApiKey)
            .where(ApiKey.tenant_id == self._tenant_id, ApiKey.id == key_id)
            .with_for_update()
            .execution_options(populate_existing=True)
        )

    async def list_page(self, page: PageQuery) -> list[ApiKey]:
        """At most `limit` keys in order of creation, those after the id `after`."""
        query = page.narrow(select(ApiKey).where(ApiKey.tenant_id == self._tenant_id), ApiKey.id)
        return list(await self._session.scalars(query))

    async def remove(self, key_id: str) -> bool:
        deleted = await self._session.scalar(
            delete(ApiKey)
            .where(ApiKey.tenant_id == self._tenant_id, ApiKey.id == key_id)
            .returning(ApiKey.id)
        )
        return deleted is not None
