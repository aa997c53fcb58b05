"""The SQL of adapters; of their aliases: `app.adapters.alias_repository`.

Knows nothing of rules. Invariant: every query starts from the tenant, and the session is in its
scope.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from sqlalchemy import Select, delete, select
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.ext.asyncio import AsyncSession

from app.pages import PageQuery
from app.tables import Adapter, AdapterAlias, AdapterVersion


class AdapterRepository:
    """One tenant's adapters."""

    def __init__(self, session: AsyncSession, tenant_id: str) -> None:
        self._session = session
        self._tenant_id = tenant_id

    async def add(
        self,
        adapter_id: str,
        name: str,
        base_model_id: str,
        description: str | None,
        labels: Mapping[str, str],
    ) -> Adapter | None:
        """The new row; None where the tenant has an adapter of this name."""
        return await self._session.scalar(
            insert(Adapter)
            .values(
                id=adapter_id,
                tenant_id=self._tenant_id,
                name=name,
                base_model_id=base_model_id,
                description=description,
                labels=dict(labels),
            )
            .on_conflict_do_nothing()
            .returning(Adapter)
        )

    async def get_by_id(self, adapter_id: str) -> Adapter | None:
        return await self._session.scalar(self._adapters().where(Adapter.id == adapter_id))

    async def get_by_name(self, name: str) -> Adapter | None:
        return await self._session.scalar(self._adapters().where(Adapter.name == name))

    async def lock(self, adapter_id: str) -> Adapter | None:
        """The row, locked and read afresh: whoever changes versions or aliases comes in turn."""
        return await self._session.scalar(
            self._adapters()
            .where(Adapter.id == adapter_id)
            .with_for_update()
            .execution_options(populate_existing=True)
        )

    async def list_page(self, page: PageQuery) -> list[Adapter]:
        query = page.narrow(self._adapters(), Adapter.id)
        return list(await self._session.scalars(query))

    async def remove(self, adapter_id: str) -> None:
        await self._session.execute(
            delete(Adapter).where(Adapter.tenant_id == self._tenant_id, Adapter.id == adapter_id)
        )

    async def aliases_of(self, adapter_ids: Collection[str]) -> dict[str, dict[str, int]]:
        """adapter id -> alias -> number of the version that it means most often."""
        rows = await self._session.execute(
            select(AdapterAlias.adapter_id, AdapterAlias.alias, AdapterVersion.number)
            .join(AdapterVersion, AdapterVersion.id == AdapterAlias.version_id)
            .where(
                AdapterAlias.tenant_id == self._tenant_id, AdapterAlias.adapter_id.in_(adapter_ids)
            )
        )
        aliases: dict[str, dict[str, int]] = {adapter_id: {} for adapter_id in adapter_ids}
        for adapter_id, alias, number in rows:
            aliases[adapter_id][alias] = number
        return aliases

    async def base_model_ids(self) -> frozenset[str]:
        """Of all the tenant's adapters."""
        query = select(Adapter.base_model_id).where(Adapter.tenant_id == self._tenant_id)
        return frozenset(await self._session.scalars(query.distinct()))

    async def locators_of(self, adapter_id: str | None = None) -> list[str]:
        """Where the bytes of one adapter's versions are, or of all the tenant's."""
        query = select(AdapterVersion.locator).where(AdapterVersion.tenant_id == self._tenant_id)
        if adapter_id is not None:
            query = query.where(AdapterVersion.adapter_id == adapter_id)
        return list(await self._session.scalars(query.distinct()))

    def _adapters(self) -> Select[Adapter]:
        return select(Adapter).where(Adapter.tenant_id == self._tenant_id)
