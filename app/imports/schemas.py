"""Imports as the API shows and takes them."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import Field, SecretStr, model_validator

from app.adapters.submission import License
from app.bodies import Body, Label, Line, Timestamp
from app.etags import Tagged
from app.imports.sources import MAX_SOURCE_CHARS
from app.imports.tables import Import
from app.uploads.schemas import Sha256

MAX_TOKEN_CHARS = 4096


class ImportCreate(Body):
    """`sha256`: of the weights file. `token`: sent to the source as a bearer token, never shown.

    `credential_ref`: the name of a token that workers have, instead; operators only. `strict`: what
    is otherwise a warning refuses it. `license`: what it is said to be under, such as `apache-2.0`.
    `activate`: false: once its version has passed it waits, as `validated`, to be activated.
    """

    source: Annotated[Line, Field(min_length=1, max_length=MAX_SOURCE_CHARS)]
    sha256: Sha256 | None = None
    token: Annotated[SecretStr, Field(min_length=1, max_length=MAX_TOKEN_CHARS)] | None = None
    credential_ref: Label | None = None
    strict: bool = False
    license: License | None = None
    activate: bool = True

    @model_validator(mode="after")
    def _has_one_token(self) -> Self:
        if self.token is not None and self.credential_ref is not None:
            raise ValueError("at most one of token and credential_ref is needed")
        return self


class ImportView(Tagged):
    """`state`: queued, running, succeeded, failed or cancelled.

    How many bytes there are by now is not in its etag.
    """

    stateless: ClassVar = frozenset({"bytes_done", "bytes_total"})

    object: Literal["adapter.import"] = "adapter.import"
    id: str
    adapter_id: str
    source: str
    revision: str | None
    sha256: str | None
    credential_ref: str | None
    strict: bool
    license: str | None
    activate: bool
    state: str
    bytes_done: int
    bytes_total: int | None
    version_id: str | None
    error: dict[str, Any] | None
    created: Timestamp
    started_at: Timestamp | None
    ended_at: Timestamp | None

    @classmethod
    def of(cls, job: Import) -> Self:
        return cls(
            id=job.id,
            adapter_id=job.adapter_id,
            source=job.source,
            revision=job.revision,
            sha256=job.sha256,
            credential_ref=job.credential_ref,
            strict=job.strict,
            license=job.license,
            activate=job.activates,
            state=job.state,
            bytes_done=job.bytes_done,
            bytes_total=job.bytes_total,
            version_id=job.version_id,
            error=job.error,
            created=job.created_at,
            started_at=job.started_at,
            ended_at=job.ended_at,
        )
