"""The SQL of API keys.

Knows nothing of scopes' meaning or of HTTP. Invariant: but for the look-up by hash, every query
names the tenant.
"""

from __future__ import annotations

from dataclasses import dataclass

from sqlalchemy import delete, select
from sqlalchemy.ext.asyncio import AsyncSession

from app.db import key_scope
from app.tables import ApiKey, Tenant


@dataclass(frozen=True, slots=True)
class FoundKey:
    key: ApiKey
    tenant: Tenant


async def find_key_by_hash(session: AsyncSession, key_hash: str) -> FoundKey | None:
    """The key with this HMAC and its tenant: before authentication, the only row to be seen."""
    await key_scope(session, key_hash)
    row = (
        await session.execute(
            select(ApiKey, Tenant)
            .join(Tenant, Tenant.id == ApiKey.tenant_id)
            .where(ApiKey.key_hash == key_hash)
        )
    ).one_or_none()
    return None if row is None else FoundKey(row[0], row[1])


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

    async def list_page(self, after: str | None, limit: int) -> list[ApiKey]:
        """At most `limit` keys in order of creation, those after the id `after`."""
        query = select(ApiKey).where(ApiKey.tenant_id == self._tenant_id)
        if after is not None:
            query = query.where(ApiKey.id > after)
        return list(await self._session.scalars(query.order_by(ApiKey.id).limit(limit)))

    async def remove(self, key_id: str) -> bool:
        deleted = await self._session.scalar(
            delete(ApiKey)
            .where(ApiKey.tenant_id == self._tenant_id, ApiKey.id == key_id)
            .returning(ApiKey.id)
        )
        return deleted is not None
