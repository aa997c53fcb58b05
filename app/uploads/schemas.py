"""Uploads in parts as the API shows and takes them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, ClassVar, Literal, Self

from pydantic import BaseModel, Field

from app.bodies import Body, Timestamp
from app.etags import Tagged
from app.uploads.layout import file_parts
from app.uploads.tables import Upload, UploadPart

MAX_FILES = 16
MAX_BYTES = 1 << 40

Sha256 = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]


class UploadFile(Body):
    """A file that is going to be sent. `path`: its name in the adapter."""

    path: Annotated[str, Field(min_length=1, max_length=255)]
    bytes: Annotated[int, Field(ge=0, le=MAX_BYTES)]
    sha256: Sha256


class UploadCreate(Body):
    files: Annotated[list[UploadFile], Field(min_length=1, max_length=MAX_FILES)]


class PartView(BaseModel):
    """Where a part is sent with PUT, and what has to be in the request's headers."""

    n: int
    url: str
    bytes: int
    required_headers: dict[str, str]


class PartReceived(BaseModel):
    object: Literal["adapter.upload.part"] = "adapter.upload.part"
    upload_id: str
    path: str
    n: int
    bytes: int
    sha256: str

    @classmethod
    def of(cls, part: UploadPart) -> Self:
        return cls(
            upload_id=part.upload_id,
            path=part.path,
            n=part.number,
            bytes=part.num_bytes,
            sha256=part.sha256,
        )


class UploadFileView(BaseModel):
    """`skip_upload`: the bytes are the tenant's already. `received`: numbers of parts."""

    path: str
    bytes: int
    sha256: str
    skip_upload: bool
    part_size: int
    parts: list[PartView]
    received: list[int]


class UploadView(Tagged):
    """`state`: uploading, completing, completed, rejected, cancelled or expired.

    What was declared never changes, parts come in all the time, and their URLs are as the request
    named the adapter: the etag is of the rest.
    """

    stateless: ClassVar = frozenset({"files"})

    object: Literal["adapter.upload"] = "adapter.upload"
    id: str
    upload_id: str
    adapter_id: str
    state: str
    files: list[UploadFileView]
    version_id: str | None
    created: Timestamp
    expires_at: Timestamp

    @classmethod
    def of(cls, upload: Upload, received: Iterable[UploadPart], url: str) -> Self:
        """url: of the upload itself, without a slash at its end."""
        there = {(part.path, part.number) for part in received}
        return cls(
            id=upload.id,
            upload_id=upload.id,
            adapter_id=upload.adapter_id,
            state=upload.state,
            files=[
                UploadFileView(
                    path=file.path,
                    bytes=file.num_bytes,
                    sha256=file.sha256,
                    skip_upload=file.locator is not None,
                    part_size=upload.part_bytes,
                    parts=[
                        PartView(
                            n=part.number,
                            url=f"{url}/files/{part.path}/parts/{part.number}",
                            bytes=part.num_bytes,
                            required_headers={"content-length": str(part.num_bytes)},
                        )
                        for part in file.parts
                    ],
                    received=[
                        part.number for part in file.parts if (part.path, part.number) in there
                    ],
                )
                for file in file_parts(upload)
            ],
            version_id=upload.version_id,
            created=upload.created_at,
            expires_at=upload.expires_at,
        )
