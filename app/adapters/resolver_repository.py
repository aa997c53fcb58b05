"""The SQL behind model names: active versions of one tenant's adapters on one base.

Knows nothing of requests. Invariant: both queries start from the tenant, and the session is in its
scope.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import Select, select
from sqlalchemy.ext.asyncio import AsyncSession

from app.adapters.names import AdapterName
from app.tables import Adapter, AdapterAlias, AdapterVersion


@dataclass(frozen=True, slots=True)
class NamedVersion:
    adapter_name: str
    number: int
    digest: str
    locator: str
    created_at: datetime
    version_id: str
    adapter_id: str
    limits: dict[str, Any]

    @property
    def version(self) -> str:
        return f"v{self.number}"


async def find_versions(
    session: AsyncSession, tenant_id: str, base_model_id: str, name: AdapterName
) -> list[NamedVersion]:
    """The versions `name` may mean: one, none, or two where a digest's prefix is ambiguous."""
    query = _active_versions(tenant_id, base_model_id).where(Adapter.name == name.name)
    if name.alias is not None:
        query = _join_alias(query).where(AdapterAlias.alias == name.alias)
    elif name.number is not None:
        query = query.where(AdapterVersion.number == name.number)
    else:
        assert name.digest_prefix is not None
        query = query.where(AdapterVersion.digest.startswith(name.digest_prefix, autoescape=True))
    return [NamedVersion(*row) for row in await session.execute(query.limit(2))]


async def list_aliased_versions(
    session: AsyncSession, tenant_id: str, base_model_id: str
) -> list[tuple[str, NamedVersion]]:
    """(alias, version) of every alias, by adapter and alias name."""
    query = _join_alias(_active_versions(tenant_id, base_model_id))
    query = query.add_columns(AdapterAlias.alias).order_by(Adapter.name, AdapterAlias.alias)
    return [(row[-1], NamedVersion(*row[:-1])) for row in await session.execute(query)]


def _active_versions(tenant_id: str, base_model_id: str) -> Select[*tuple[Any, ...]]:
    return (
        select(
            Adapter.name,
            AdapterVersion.number,
            AdapterVersion.digest,
            AdapterVersion.locator,
            AdapterVersion.created_at,
            AdapterVersion.id,
            Adapter.id,
            Adapter.limits,
        )
        .join(AdapterVersion, AdapterVersion.adapter_id == Adapter.id)
        .where(
            Adapter.tenant_id == tenant_id,
            AdapterVersion.tenant_id == tenant_id,
            Adapter.base_model_id == base_model_id,
            AdapterVersion.state == "active",
        )
    )


def _join_alias(query: Select[*tuple[Any, ...]]) -> Select[*tuple[Any, ...]]:
    return query.join(AdapterAlias, AdapterAlias.version_id == AdapterVersion.id)
