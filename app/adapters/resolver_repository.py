"""The SQL behind model names: which versions of one tenant's adapters on one base they may mean.

Knows nothing of requests. Invariants: every query starts from the tenant, and the session is in its
scope; a version that an alias may mean is told whether it is served or not, so that nobody else's
share grows where one of several ceases to be.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import date, datetime
from typing import Any

from sqlalchemy import ColumnElement, Date, Select, and_, cast, func, select
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import aliased

from app.adapters.names import AdapterName
from app.adapters.states import NAMEABLE, SHADOWABLE
from app.adapters.tables import AliasTarget
from app.adapters.weighted import WHOLE
from app.tables import Adapter, AdapterAlias, AdapterVersion

MAX_NAMED = WHOLE  # an alias has no more targets: each has at least a hundredth

_shadow = aliased(AdapterVersion)


@dataclass(frozen=True, slots=True)
class NamedVersion:
    """`weight` is its part of what the name means, in percent. `sticky_by` and what begins with
    `shadow_` is of the alias.
    """

    adapter_name: str
    number: int
    digest: str
    locator: str
    created_at: datetime
    version_id: str
    adapter_id: str
    limits: dict[str, Any]
    state: str
    shutdown_on: date | None
    is_served: bool
    files: list[dict[str, Any]]
    certificate: str | None = None
    weight: int = WHOLE
    sticky_by: str | None = None
    shadow_share: int | None = None
    shadow_id: str | None = None
    shadow_digest: str | None = None
    shadow_locator: str | None = None
    shadow_files: list[dict[str, Any]] | None = None
    shadow_certificate: str | None = None

    @property
    def version(self) -> str:
        return f"v{self.number}"


async def find_versions(
    session: AsyncSession, tenant_id: str, base_model_id: str, name: AdapterName
) -> list[NamedVersion]:
    """The versions `name` may mean, the oldest first.

    An alias means several by weight; more than one for a digest's prefix is an ambiguous one. Only
    of an alias there are some that are not served.
    """
    query = _versions(tenant_id, base_model_id).where(Adapter.name == name.name)
    if name.alias is not None:
        query = _join_alias(query).where(AdapterAlias.alias == name.alias)
    elif name.number is not None:
        query = query.where(AdapterVersion.number == name.number, _is_served())
    else:
        assert name.digest_prefix is not None
        query = query.where(
            AdapterVersion.digest.startswith(name.digest_prefix, autoescape=True), _is_served()
        )
    query = query.order_by(AdapterVersion.number).limit(MAX_NAMED)
    return [NamedVersion(*row) for row in await session.execute(query)]


async def list_aliased_versions(
    session: AsyncSession, tenant_id: str, base_model_id: str
) -> list[tuple[str, NamedVersion]]:
    """(alias, version) of every alias, by adapter and alias name: the one it means most often."""
    query = _join_alias(_versions(tenant_id, base_model_id)).where(_is_served())
    query = query.add_columns(AdapterAlias.alias).order_by(
        Adapter.name, AdapterAlias.alias, _weight().desc(), AdapterVersion.number.desc()
    )
    found: dict[tuple[str, str], NamedVersion] = {}
    for *version, alias in await session.execute(query):
        named = NamedVersion(*version)
        found.setdefault((named.adapter_name, alias), named)
    return [(alias, named) for (_, alias), named in found.items()]


def _versions(tenant_id: str, base_model_id: str) -> Select[*tuple[Any, ...]]:
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
            AdapterVersion.state,
            AdapterVersion.shutdown_on,
            _is_served().label("is_served"),
            AdapterVersion.files,
            func.jsonb_extract_path_text(AdapterVersion.certificate, "certificate"),
        )
        .join(AdapterVersion, AdapterVersion.adapter_id == Adapter.id)
        .where(
            Adapter.tenant_id == tenant_id,
            AdapterVersion.tenant_id == tenant_id,
            Adapter.base_model_id == base_model_id,
        )
    )


def _join_alias(query: Select[*tuple[Any, ...]]) -> Select[*tuple[Any, ...]]:
    """With the alias's weights; one without targets was written by an older process."""
    return (
        query.join(AdapterAlias, AdapterAlias.adapter_id == Adapter.id)
        .outerjoin(
            AliasTarget,
            and_(
                AliasTarget.adapter_id == AdapterAlias.adapter_id,
                AliasTarget.alias == AdapterAlias.alias,
            ),
        )
        .outerjoin(
            _shadow,
            and_(_shadow.id == AdapterAlias.shadow_version_id, _shadow.state.in_(SHADOWABLE)),
        )
        .where(AdapterVersion.id == func.coalesce(AliasTarget.version_id, AdapterAlias.version_id))
        .add_columns(
            _weight(),
            AdapterAlias.sticky_by,
            AdapterAlias.shadow_share,
            _shadow.id,
            _shadow.digest,
            _shadow.locator,
            _shadow.files,
            func.jsonb_extract_path_text(_shadow.certificate, "certificate"),
        )
    )


def _weight() -> ColumnElement[int]:
    return func.coalesce(AliasTarget.weight, WHOLE)


def _is_served() -> ColumnElement[bool]:
    today = cast(func.timezone("UTC", func.now()), Date)
    is_open = func.coalesce(AdapterVersion.shutdown_on > today, True)
    return and_(AdapterVersion.state.in_(NAMEABLE), is_open)
