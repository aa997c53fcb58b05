"""API keys as the admin API shows and takes them. The secret is shown once, by `KeyCreated`."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Annotated, Literal, Self

from pydantic import BaseModel, Field

from app.auth import Scope
from app.bodies import Body, Line, Timestamp
from app.tables import ApiKey

MAX_TIMESTAMP = int(datetime(9999, 1, 1, tzinfo=UTC).timestamp())


class KeyCreate(Body):
    """`expires_at` is in seconds since 1970; without it the key does not expire."""

    name: Line = "default"
    scopes: list[Scope] = Field(default=["inference"], min_length=1, max_length=8)
    expires_at: Annotated[int, Field(ge=0, le=MAX_TIMESTAMP)] | None = None


class KeyView(BaseModel):
    object: Literal["api_key"] = "api_key"
    id: str
    tenant_id: str
    name: str
    scopes: list[str]
    last4: str
    created: Timestamp
    expires_at: Timestamp | None
    disabled_at: Timestamp | None

    @classmethod
    def of(cls, key: ApiKey) -> Self:
        return cls(**_fields(key))


class KeyCreated(KeyView):
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
        "last4": key.last4,
        "created": key.created_at,
        "expires_at": key.expires_at,
        "disabled_at": key.disabled_at,
    }
