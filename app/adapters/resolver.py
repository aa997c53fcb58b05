"""From the `model` of a request to the adapter version it names, for one tenant.

Knows nothing of HTTP. Invariants: the tenant comes from the principal, never from the string;
what another tenant owns, what the key or its tenant may not call and what does not exist are the
same `ModelNotFoundError`; only an active version on the served base resolves.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from sqlalchemy.ext.asyncio import AsyncSession

from app.adapters.names import DEFAULT_ALIAS, parse_model
from app.adapters.resolver_repository import NamedVersion, find_versions, list_aliased_versions
from app.auth import Principal
from app.db import tenant_scope
from app.errors import ModelNotFoundError
from app.plans.limits import Limit
from app.plans.terms import adapter_limits
from engine.messages import AdapterRef
from lora.base_spec import BaseSpec

BASE_OWNER = "tenfold"


@dataclass(frozen=True, slots=True)
class ResolvedModel:
    """What a request runs on, pinned for its life. All but `requested` is None for the base."""

    requested: str
    adapter: AdapterRef | None = None
    version: str | None = None
    digest: str | None = None
    version_id: str | None = None
    adapter_id: str | None = None
    limits: tuple[Limit, ...] = ()


@dataclass(frozen=True, slots=True)
class ModelCard:
    """One row of `GET /v1/models`. `created_at` is None for the base."""

    id: str
    owned_by: str
    created_at: datetime | None = None
    version: str | None = None
    digest: str | None = None


async def resolve(
    session: AsyncSession, principal: Principal, model: str, base: BaseSpec
) -> ResolvedModel:
    """Pin `model` (grammar: `app.adapters.names`) to a version. Raises ModelNotFoundError."""
    if model == base.model_id:
        _check_base(principal, model)
        return ResolvedModel(model)
    found = await _find(session, principal, model, base)
    return ResolvedModel(
        requested=model,
        adapter=AdapterRef(
            tenant_id=principal.tenant_id, digest=found.digest, locator=found.locator
        ),
        version=found.version,
        digest=found.digest,
        version_id=found.version_id,
        adapter_id=found.adapter_id,
        limits=adapter_limits(found.adapter_id, found.limits),
    )


async def get_model(
    session: AsyncSession, principal: Principal, model: str, base: BaseSpec
) -> ModelCard:
    """The card of one model, by any of its names. Raises ModelNotFoundError."""
    if model == base.model_id:
        _check_base(principal, model)
        return _base_card(base)
    return _card(model, principal, await _find(session, principal, model, base))


async def list_models(
    session: AsyncSession, principal: Principal, base: BaseSpec
) -> list[ModelCard]:
    """What this key may call by name: the base, then each adapter by each of its aliases."""
    bases = [_base_card(base)] if principal.may_call_base(base.model_id) else []
    await tenant_scope(session, principal.tenant_id)
    rows = await list_aliased_versions(session, principal.tenant_id, base.model_id)
    return bases + [
        _card(_model_name(row.adapter_name, alias), principal, row)
        for alias, row in rows
        if principal.may_call(row.adapter_name)
    ]


async def _find(
    session: AsyncSession, principal: Principal, model: str, base: BaseSpec
) -> NamedVersion:
    name = parse_model(model)
    if name is None or not principal.may_call(name.name):
        raise ModelNotFoundError(model)
    await tenant_scope(session, principal.tenant_id)
    found = await find_versions(session, principal.tenant_id, base.model_id, name)
    if len(found) != 1:  # none, or an ambiguous digest
        raise ModelNotFoundError(model)
    return found[0]


def _check_base(principal: Principal, model: str) -> None:
    if not principal.may_call_base(model):
        raise ModelNotFoundError(model)


def _model_name(adapter_name: str, alias: str) -> str:
    return adapter_name if alias == DEFAULT_ALIAS else f"{adapter_name}:{alias}"


def _base_card(base: BaseSpec) -> ModelCard:
    return ModelCard(id=base.model_id, owned_by=BASE_OWNER)


def _card(model: str, principal: Principal, row: NamedVersion) -> ModelCard:
    return ModelCard(
        id=model,
        owned_by=principal.tenant_slug,
        created_at=row.created_at,
        version=row.version,
        digest=row.digest,
    )
