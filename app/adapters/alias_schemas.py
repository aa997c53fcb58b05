"""Aliases and their history as the API shows and takes them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, Field, model_validator

from app.adapters.alias_repository import Pointing, Shadow
from app.adapters.tables import AliasChange
from app.adapters.weighted import WHOLE, StickyBy
from app.bodies import Body, Timestamp
from app.etags import Tagged
from app.rollouts.shadows import ShadowSample

MAX_TARGETS = 20
VersionName = Annotated[str, Field(min_length=2, max_length=64)]
Weight = Annotated[int, Field(ge=1, le=WHOLE)]


class WeightedVersion(Body):
    """`version`: `v3`, or a version's id. `weight`: in how many of a hundred requests."""

    version: VersionName
    weight: Weight


class AliasPut(Body):
    """Either one `version`, or `targets` whose weights sum to 100.

    `sticky_by`: requests with the same value of this field mean the same target.
    `shadow`: in `weight` of a hundred requests its `version` runs too, and nobody sees its answer.
    """

    version: VersionName | None = None
    targets: (
        Annotated[list[WeightedVersion], Field(min_length=1, max_length=MAX_TARGETS)] | None
    ) = None
    sticky_by: StickyBy | None = None
    shadow: WeightedVersion | None = None

    @model_validator(mode="after")
    def _names_something(self) -> Self:
        if (self.version is None) == (self.targets is None):
            raise ValueError("exactly one of version and targets is needed")
        return self

    @property
    def weighted(self) -> list[WeightedVersion]:
        if self.targets is not None:
            return self.targets
        assert self.version is not None
        return [WeightedVersion(version=self.version, weight=WHOLE)]


class RollbackPost(Body):
    """`to`: an entry of the history; by default the one before where the alias points now."""

    to: Annotated[str, Field(max_length=64)] | None = None


class TargetView(BaseModel):
    version: str
    version_id: str
    weight: int


class AliasView(Tagged):
    """`version` is the target that is meant most often."""

    object: Literal["adapter.alias"] = "adapter.alias"
    alias: str
    adapter_id: str
    version: str
    version_id: str
    targets: list[TargetView]
    sticky_by: str | None
    shadow: TargetView | None
    updated: Timestamp

    @classmethod
    def of(cls, pointing: Pointing) -> Self:
        return cls(
            alias=pointing.alias,
            adapter_id=pointing.adapter_id,
            version=pointing.primary.version,
            version_id=pointing.primary.version_id,
            targets=[
                TargetView(version=each.version, version_id=each.version_id, weight=each.weight)
                for each in pointing.targets
            ],
            sticky_by=pointing.sticky_by,
            shadow=_shadow(pointing.shadow),
            updated=pointing.updated_at,
        )


class ShadowResults(BaseModel):
    """What came of running on the shadow, if there is one: of `num` requests.

    `errors` of them failed, and `identical` said the same.

    `agreement`: the mean part of an answer, in characters, before the two differ; null without any.
    """

    object: Literal["adapter.alias.shadow"] = "adapter.alias.shadow"
    alias: str
    version_id: str | None
    num: int
    errors: int
    identical: int
    agreement: float | None
    mean_chars: float | None
    mean_shadow_chars: float | None

    @classmethod
    def of(cls, alias: str, version_id: str | None, samples: Sequence[ShadowSample]) -> Self:
        ours = [each for each in samples if each.version_id == version_id]
        compared = [each for each in ours if not each.is_error]
        return cls(
            alias=alias,
            version_id=version_id,
            num=len(ours),
            errors=len(ours) - len(compared),
            identical=sum(each.is_identical for each in compared),
            agreement=_mean([each.agreement for each in compared]),
            mean_chars=_mean([each.num_chars for each in compared]),
            mean_shadow_chars=_mean([each.num_shadow_chars for each in compared]),
        )


class AliasChangeView(BaseModel):
    """Where an alias pointed from `changed` on. No targets: it was deleted then.

    `restores`: the entry that a roll-back went back to.
    """

    object: Literal["adapter.alias.change"] = "adapter.alias.change"
    id: str
    alias: str
    targets: list[dict[str, Any]]
    sticky_by: str | None
    actor: str
    restores: str | None
    changed: Timestamp

    @classmethod
    def of(cls, change: AliasChange) -> Self:
        return cls(
            id=change.id,
            alias=change.alias,
            targets=change.targets,
            sticky_by=change.sticky_by,
            actor=change.actor,
            restores=change.restores,
            changed=change.changed_at,
        )


def _shadow(shadow: Shadow | None) -> TargetView | None:
    if shadow is None:
        return None
    return TargetView(version=shadow.version, version_id=shadow.version_id, weight=shadow.share)


def _mean(values: Sequence[float]) -> float | None:
    return sum(values) / len(values) if values else None
