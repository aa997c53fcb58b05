"""Downloads as the API shows them."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel

from app.bodies import Timestamp


class DownloadFile(BaseModel):
    """`url`: where its bytes are; a path of this API, or a URL of the store's own."""

    path: str
    bytes: int
    sha256: str
    url: str


class DownloadView(BaseModel):
    """`expires_at`: until when the URLs are good that need no key; null where each needs one."""

    object: Literal["adapter.download"] = "adapter.download"
    version_id: str
    digest: str
    files: list[DownloadFile]
    expires_at: Timestamp | None
