"""API keys as they are shown and taken. The secret is shown once, by `KeyCreated`."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Annotated, ClassVar, Literal, Self

from pydantic import Field

from app.auth import Scope
from app.bodies import Body, Labels, Line, Timestamp
from app.etags import Tagged
from app.tables import ApiKey

MAX_TIMESTAMP = int(datetime(9999, 1, 1, tzinfo=UTC).timestamp())
MAX_MODELS = 256
DAY_S = 86_400
MAX_OVERLAP_S = 90 * DAY_S


class KeyCreate(Body):
    """`expires_at` is in seconds since 1970; without it the key does not expire.

    `allowed_models`: names of adapters, and ids of bases, that the key may call; null is all that
    its tenant may. `metadata` is for its maker's own systems; a rotated key has it too.
    """

    name: Line = "default"
    scopes: list[Scope] = Field(default=["inference"], min_length=1, max_length=8)
    expires_at: Annotated[int, Field(ge=0, le=MAX_TIMESTAMP)] | None = None
    allowed_models: Annotated[list[Line], Field(max_length=MAX_MODELS)] | None = None
    metadata: Labels = Field(default_factory=dict)


class KeyRotate(Body):
    """`overlap_s`: how long the old key still works, in seconds."""

    overlap_s: Annotated[int, Field(ge=0, le=MAX_OVERLAP_S)] = DAY_S


class KeyView(Tagged):
    """`replaced_by`: the key that a rotation made of this one.

    `api_version`: of the API, as requests with the key have it that name none.
    """

    object: Literal["api_key"] = "api_key"
    id: str
    tenant_id: str
    name: str
    scopes: list[str]
    allowed_models: list[str] | None
    last4: str
    created: Timestamp
    created_by: str | None
    expires_at: Timestamp | None
    disabled_at: Timestamp | None
    replaced_by: str | None
    api_version: str
    metadata: dict[str, str]

    @classmethod
    def of(cls, key: ApiKey) -> Self:
        return cls(**_fields(key))


class KeyCreated(KeyView):
    """Its etag is that of the key without the secret, as it is shown from now on."""

    stateless: ClassVar = frozenset({"secret"})

    secret: str

    @classmethod
    def with_secret(cls, key: ApiKey, secret: str) -> Self:
        return cls(**_fields(key), secret=secret)


def _fields(key: ApiKey) -> dict[str, object]:
    return {
        "id": key.id,
        "tenant_id": key.tenant_id,
        "name": key.name,
        "scopes": key.scopes,
        "allowed_models": key.allowed_models,
        "last4": key.last4,
        "created": key.created_at,
        "created_by": key.created_by,
        "expires_at": key.expires_at,
        "disabled_at": key.disabled_at,
        "replaced_by": key.replaced_by,
        "api_version": key.api_version,
        "metadata": key.labels,
    }
