"""The SQL of aliases: where each points, and where it pointed.

Knows nothing of rules. Invariants: every query starts from the tenant, and the session is in its
scope; whatever moves an alias leaves an entry in its history, in the same transaction.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import date, datetime
from typing import Any

from sqlalchemy import Select, delete, func, select
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import aliased

from app.adapters.tables import AliasChange, AliasTarget
from app.adapters.weighted import WHOLE
from app.ids import new_id
from app.pages import PageQuery
from app.tables import AdapterAlias, AdapterVersion

SYSTEM = "system"  # who points `prod` at an adapter's first version

_shadow_version = aliased(AdapterVersion)


@dataclass(frozen=True, slots=True)
class Target:
    """A version that an alias may mean, in `weight` of a hundred requests."""

    version_id: str
    number: int
    weight: int
    state: str
    shutdown_on: date | None

    @property
    def version(self) -> str:
        return f"v{self.number}"


@dataclass(frozen=True, slots=True)
class Shadow:
    """A version on which `share` of a hundred requests also run, for nobody to see."""

    version_id: str
    number: int
    share: int

    @property
    def version(self) -> str:
        return f"v{self.number}"


@dataclass(frozen=True, slots=True)
class Pointing:
    """Where an alias points. Targets by their versions' age."""

    adapter_id: str
    alias: str
    targets: tuple[Target, ...]
    sticky_by: str | None
    updated_at: datetime
    shadow: Shadow | None = None

    @property
    def primary(self) -> Target:
        """The one that is meant most often, the newer of two equals."""
        return primary_of(self.targets)


def primary_of(targets: Sequence[Target]) -> Target:
    return max(targets, key=lambda each: (each.weight, each.number))


def target_of(version: AdapterVersion, weight: int = WHOLE) -> Target:
    return Target(version.id, version.number, weight, version.state, version.shutdown_on)


class AliasRepository:
    """One tenant's aliases."""

    def __init__(self, session: AsyncSession, tenant_id: str) -> None:
        self._session = session
        self._tenant_id = tenant_id

    async def get(self, adapter_id: str, alias: str) -> Pointing | None:
        found = await self._pointings([adapter_id], alias)
        return found[0] if found else None

    async def list_of(self, adapter_ids: Collection[str]) -> list[Pointing]:
        """Every alias of these adapters, by adapter and name."""
        return await self._pointings(adapter_ids, None)

    async def list_on(self, version_id: str) -> list[str]:
        """The aliases that may mean a version."""
        targeting = select(AliasTarget.alias).where(
            AliasTarget.tenant_id == self._tenant_id, AliasTarget.version_id == version_id
        )
        pointing = select(AdapterAlias.alias).where(
            AdapterAlias.tenant_id == self._tenant_id, AdapterAlias.version_id == version_id
        )
        return sorted(await self._session.scalars(targeting.union(pointing)))

    async def put(
        self,
        adapter_id: str,
        alias: str,
        targets: Sequence[Target],
        *,
        sticky_by: str | None,
        actor: str,
        restores: str | None = None,
        shadow: Shadow | None = None,
    ) -> AliasChange:
        """Point `alias` at `targets` (at least one), wherever it pointed before."""
        shadowed = None if shadow is None else shadow.version_id
        share = None if shadow is None else shadow.share
        statement = insert(AdapterAlias).values(
            adapter_id=adapter_id,
            alias=alias,
            tenant_id=self._tenant_id,
            version_id=primary_of(targets).version_id,
            sticky_by=sticky_by,
            shadow_version_id=shadowed,
            shadow_share=share,
        )
        await self._session.execute(
            statement.on_conflict_do_update(
                index_elements=[AdapterAlias.adapter_id, AdapterAlias.alias],
                set_={
                    "version_id": statement.excluded.version_id,
                    "sticky_by": statement.excluded.sticky_by,
                    "shadow_version_id": statement.excluded.shadow_version_id,
                    "shadow_share": statement.excluded.shadow_share,
                    "updated_at": func.now(),
                },
            )
        )
        # The update has removed the targets: so has that of a process which knows of none.
        rows = [
            {
                "adapter_id": adapter_id,
                "alias": alias,
                "version_id": target.version_id,
                "tenant_id": self._tenant_id,
                "weight": target.weight,
            }
            for target in targets
        ]
        await self._session.execute(insert(AliasTarget).values(rows))
        return await self._note(adapter_id, alias, targets, sticky_by, actor, restores)

    async def remove(self, adapter_id: str, alias: str, *, actor: str) -> None:
        await self._session.execute(
            delete(AdapterAlias).where(
                AdapterAlias.tenant_id == self._tenant_id,
                AdapterAlias.adapter_id == adapter_id,
                AdapterAlias.alias == alias,
            )
        )
        await self._note(adapter_id, alias, [], None, actor, None)

    async def get_change(self, adapter_id: str, alias: str, change_id: str) -> AliasChange | None:
        return await self._session.scalar(
            self._changes(adapter_id, alias).where(AliasChange.id == change_id)
        )

    async def latest_change(self, adapter_id: str, alias: str) -> AliasChange | None:
        return await self._session.scalar(
            self._changes(adapter_id, alias).order_by(AliasChange.seq.desc()).limit(1)
        )

    async def change_before(self, change: AliasChange) -> AliasChange | None:
        """The entry before it that points somewhere."""
        return await self._session.scalar(
            self._changes(change.adapter_id, change.alias)
            .where(AliasChange.seq < change.seq, func.jsonb_array_length(AliasChange.targets) > 0)
            .order_by(AliasChange.seq.desc())
            .limit(1)
        )

    async def list_changes(self, adapter_id: str, alias: str, page: PageQuery) -> list[AliasChange]:
        """In the order in which they were made, or the other way round."""
        last = self._changes(adapter_id, alias).where(AliasChange.id == page.after)
        seq = last.with_only_columns(AliasChange.seq).correlate(None).scalar_subquery()
        query = page.narrow(self._changes(adapter_id, alias), AliasChange.seq, after=seq)
        return list(await self._session.scalars(query))

    async def _note(
        self,
        adapter_id: str,
        alias: str,
        targets: Sequence[Target],
        sticky_by: str | None,
        actor: str,
        restores: str | None,
    ) -> AliasChange:
        change = AliasChange(
            id=new_id("alc"),
            tenant_id=self._tenant_id,
            adapter_id=adapter_id,
            alias=alias,
            targets=[
                {"version_id": each.version_id, "version": each.version, "weight": each.weight}
                for each in targets
            ],
            sticky_by=sticky_by,
            actor=actor,
            restores=restores,
        )
        self._session.add(change)
        await self._session.flush()
        return change

    async def _pointings(self, adapter_ids: Collection[str], alias: str | None) -> list[Pointing]:
        query = (
            select(
                AdapterAlias.adapter_id,
                AdapterAlias.alias,
                AdapterAlias.sticky_by,
                AdapterAlias.updated_at,
                AdapterAlias.shadow_version_id,
                _shadow_version.number,
                AdapterAlias.shadow_share,
                AdapterVersion.id,
                AdapterVersion.number,
                func.coalesce(AliasTarget.weight, WHOLE),
                AdapterVersion.state,
                AdapterVersion.shutdown_on,
            )
            .select_from(AdapterAlias)
            .outerjoin(
                AliasTarget,
                (AliasTarget.adapter_id == AdapterAlias.adapter_id)
                & (AliasTarget.alias == AdapterAlias.alias),
            )
            .join(
                AdapterVersion,
                AdapterVersion.id == func.coalesce(AliasTarget.version_id, AdapterAlias.version_id),
            )
            .outerjoin(_shadow_version, _shadow_version.id == AdapterAlias.shadow_version_id)
            .where(
                AdapterAlias.tenant_id == self._tenant_id,
                AdapterAlias.adapter_id.in_(adapter_ids),
            )
            .order_by(AdapterAlias.adapter_id, AdapterAlias.alias, AdapterVersion.number)
        )
        if alias is not None:
            query = query.where(AdapterAlias.alias == alias)
        found: dict[tuple[str, str], Pointing] = {}
        for adapter_id, name, sticky_by, updated_at, *rest in await self._session.execute(query):
            before = found.get((adapter_id, name))
            targets = before.targets if before is not None else ()
            found[adapter_id, name] = Pointing(
                adapter_id,
                name,
                (*targets, _target(rest[3:])),
                sticky_by,
                updated_at,
                shadow=_shadow(rest[:3]),
            )
        return list(found.values())

    def _changes(self, adapter_id: str, alias: str) -> Select[AliasChange]:
        return select(AliasChange).where(
            AliasChange.tenant_id == self._tenant_id,
            AliasChange.adapter_id == adapter_id,
            AliasChange.alias == alias,
        )


def _target(columns: Sequence[Any]) -> Target:
    version_id, number, weight, state, shutdown_on = columns
    return Target(version_id, number, weight, state, shutdown_on)


def _shadow(columns: Sequence[Any]) -> Shadow | None:
    version_id, number, share = columns
    return None if version_id is None else Shadow(version_id, number, share)
