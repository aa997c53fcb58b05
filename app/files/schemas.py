"""What tenants are shown of a file, and how they may say when it goes: OpenAI's objects.

Knows nothing of SQL or of bytes.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from pydantic import Field, ValidationError

from app.bodies import Body, Timestamp
from app.etags import Tagged
from app.files.tables import StoredFile
from app.validation import request_error

MIN_EXPIRY_S = 3600
MAX_EXPIRY_S = 30 * 86_400
Purpose = Literal["batch", "user_data"]


class ExpiresAfter(Body):
    anchor: Literal["created_at"]
    seconds: int = Field(ge=MIN_EXPIRY_S, le=MAX_EXPIRY_S)


class FileFields(Body):
    """What an upload says besides the file."""

    purpose: Purpose
    expires_after: ExpiresAfter | None = None

    @classmethod
    def of(cls, fields: Mapping[str, str]) -> FileFields:
        """From the form's fields, as OpenAI's SDKs spell them. Raises BadRequestError."""
        expiry = {
            name.removeprefix("expires_after[").removesuffix("]"): value
            for name, value in fields.items()
            if name.startswith("expires_after[")
        }
        said: dict[str, object] = {"purpose": fields.get("purpose")}
        try:
            return cls.model_validate(said | ({"expires_after": expiry} if expiry else {}))
        except ValidationError as error:
            raise request_error(error) from error


class FileView(Tagged):
    """OpenAI's, and an etag."""

    id: str
    object: Literal["file"] = "file"
    bytes: int
    created_at: Timestamp
    filename: str
    purpose: str
    status: Literal["processed"] = "processed"
    status_details: None = None
    expires_at: Timestamp

    @classmethod
    def of(cls, row: StoredFile) -> FileView:
        return cls(
            id=row.id,
            bytes=row.num_bytes,
            created_at=row.created_at,
            filename=row.filename,
            purpose=row.purpose,
            expires_at=row.expires_at,
        )
