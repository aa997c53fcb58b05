"""From the `model` of a request to the adapter version it names, for one tenant.

Knows nothing of HTTP. Invariants: the tenant comes from the principal, never from the string;
what another tenant owns, what the key or its tenant may not call and what does not exist are the
same `ModelNotFoundError`; only a version that is served, on the served base, resolves; where an
alias means several versions the draw alone decides, whatever became of the others.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import date, datetime

from sqlalchemy.ext.asyncio import AsyncSession

from app.adapters.names import DEFAULT_ALIAS, parse_model
from app.adapters.resolver_repository import NamedVersion, find_versions, list_aliased_versions
from app.adapters.weighted import WHOLE, Draw, pick
from app.auth import Principal
from app.chat_templates.versions import template_of
from app.db import tenant_scope
from app.errors import ModelNotFoundError
from app.plans.limits import Limit
from app.plans.terms import adapter_limits
from app.rollouts.shadows import ShadowModel
from engine.messages import AdapterRef
from lora.base_spec import BaseSpec

BASE_OWNER = "tenfold"


@dataclass(frozen=True, slots=True)
class ResolvedModel:
    """What a request runs on, pinned for its life. All but `requested` is None for the base.

    template_sha256: of the chat template that the version brought with it, if it did.
    """

    requested: str
    adapter: AdapterRef | None = None
    version: str | None = None
    digest: str | None = None
    version_id: str | None = None
    adapter_id: str | None = None
    template_sha256: str | None = None
    limits: tuple[Limit, ...] = ()
    weighted_alias: str | None = None
    """The alias that was drawn from, where it means several versions."""
    shadow: ShadowModel | None = None
    """Where this request was drawn to run there too."""

    @property
    def is_observed(self) -> bool:
        """Whether somebody compares how this goes with how another version does."""
        return self.weighted_alias is not None or self.shadow is not None


@dataclass(frozen=True, slots=True)
class NamedModel:
    """All that a name means: one model, or several with weights. `alias`: which it is, if one."""

    targets: tuple[ResolvedModel | None, ...]
    weights: tuple[int, ...] = (WHOLE,)
    alias: str = ""
    sticky_by: str | None = None
    shadow: ShadowModel | None = None

    def pick(self, draw: Draw, model: str) -> ResolvedModel:
        """The target that `draw` means. Raises ModelNotFoundError where it is not served."""
        place = 0
        if len(self.targets) > 1:
            place = pick(self.weights, draw.key(self.alias, self.sticky_by))
        found = self.targets[place]
        if found is None:
            raise ModelNotFoundError(model)
        shadow = self.shadow
        if shadow is None or shadow.version_id == found.version_id:
            return found
        key = draw.key(f"{self.alias}:shadow", self.sticky_by)
        is_shadowed = pick((shadow.share, WHOLE - shadow.share), key) == 0
        return replace(found, shadow=shadow) if is_shadowed else found


@dataclass(frozen=True, slots=True)
class ModelCard:
    """One row of `GET /v1/models`. `created_at` is None for the base."""

    id: str
    owned_by: str
    created_at: datetime | None = None
    version: str | None = None
    digest: str | None = None
    state: str | None = None
    shutdown_on: date | None = None


async def resolve(
    session: AsyncSession, principal: Principal, model: str, base: BaseSpec
) -> NamedModel:
    """All that `model` (grammar: `app.adapters.names`) means. Raises ModelNotFoundError."""
    if model == base.model_id:
        _check_base(principal, model)
        return NamedModel((ResolvedModel(model),))
    name, found = await _find(session, principal, model, base)
    is_weighted = len(found) > 1
    return NamedModel(
        targets=tuple(
            _resolved(model, principal, each, name if is_weighted else None) for each in found
        ),
        weights=tuple(each.weight for each in found),
        alias=f"{found[0].adapter_id}:{name}",
        sticky_by=found[0].sticky_by,
        shadow=_shadow(principal, name, found[0]),
    )


async def get_model(
    session: AsyncSession, principal: Principal, model: str, base: BaseSpec
) -> ModelCard:
    """The card of one model, by any of its names. Raises ModelNotFoundError."""
    if model == base.model_id:
        _check_base(principal, model)
        return _base_card(base)
    _, found = await _find(session, principal, model, base)
    served = [each for each in found if each.is_served]
    return _card(model, principal, max(served, key=lambda each: (each.weight, each.number)))


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
) -> tuple[str | None, list[NamedVersion]]:
    """The alias, where it is one, and what it means: at least one that is served."""
    name = parse_model(model)
    if name is None or not principal.may_call(name.name):
        raise ModelNotFoundError(model)
    await tenant_scope(session, principal.tenant_id)
    found = await find_versions(session, principal.tenant_id, base.model_id, name)
    is_ambiguous = name.alias is None and len(found) > 1
    if is_ambiguous or not any(each.is_served for each in found):
        raise ModelNotFoundError(model)
    return name.alias, found


def _resolved(
    model: str, principal: Principal, found: NamedVersion, alias: str | None
) -> ResolvedModel | None:
    if not found.is_served:
        return None
    return ResolvedModel(
        requested=model,
        adapter=AdapterRef(
            tenant_id=principal.tenant_id,
            digest=found.digest,
            locator=found.locator,
            certificate=found.certificate or "",
        ),
        version=found.version,
        digest=found.digest,
        version_id=found.version_id,
        adapter_id=found.adapter_id,
        template_sha256=template_of(found.files),
        limits=adapter_limits(found.adapter_id, found.limits),
        weighted_alias=alias,
    )


def _shadow(principal: Principal, alias: str | None, found: NamedVersion) -> ShadowModel | None:
    if alias is None or found.shadow_id is None or found.shadow_share is None:
        return None
    assert found.shadow_digest is not None and found.shadow_locator is not None
    return ShadowModel(
        adapter=AdapterRef(
            tenant_id=principal.tenant_id,
            digest=found.shadow_digest,
            locator=found.shadow_locator,
            certificate=found.shadow_certificate or "",
        ),
        version_id=found.shadow_id,
        adapter_id=found.adapter_id,
        alias=alias,
        share=found.shadow_share,
        template_sha256=template_of(found.shadow_files or []),
    )


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
        state=row.state,
        shutdown_on=row.shutdown_on,
    )
