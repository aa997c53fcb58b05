"""What a client does that sends an adapter in parts, in one line each."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import httpx


def declared(files: Mapping[str, bytes]) -> dict[str, Any]:
    """The body that begins an upload of these files."""
    return {
        "files": [
            {"path": path, "bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}
            for path, content in files.items()
        ]
    }


@dataclass(frozen=True, slots=True)
class PartSender:
    """`path`: where uploads of one adapter are."""

    client: httpx.AsyncClient
    headers: Mapping[str, str]
    path: str

    async def call(self, method: str, path: str, **options: Any) -> httpx.Response:
        headers = {**self.headers, **options.pop("headers", {})}
        return await self.client.request(method, path, headers=headers, **options)

    async def begin(self, files: Mapping[str, bytes]) -> dict[str, Any]:
        response = await self.call("POST", self.path, json=declared(files))
        assert response.status_code == 201, response.text
        upload: dict[str, Any] = response.json()
        return upload

    def parts(
        self, upload: Mapping[str, Any], files: Mapping[str, bytes]
    ) -> list[tuple[dict[str, Any], bytes]]:
        """(part, its bytes) of all that is to be sent."""
        return [
            (part, files[file["path"]][(part["n"] - 1) * file["part_size"] :][: part["bytes"]])
            for file in upload["files"]
            for part in file["parts"]
        ]

    async def put(self, part: Mapping[str, Any], content: Any, **headers: str) -> httpx.Response:
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        return await self.call("PUT", part["url"], content=content, headers=named)

    async def send_all(self, upload: Mapping[str, Any], files: Mapping[str, bytes]) -> None:
        for part, content in self.parts(upload, files):
            response = await self.put(part, content)
            assert response.status_code == 200, response.text

    async def get(self, upload: Mapping[str, Any]) -> dict[str, Any]:
        response = await self.call("GET", f"{self.path}/{upload['id']}")
        assert response.status_code == 200, response.text
        found: dict[str, Any] = response.json()
        return found

    async def complete(self, upload: Mapping[str, Any]) -> httpx.Response:
        return await self.call("POST", f"{self.path}/{upload['id']}/complete")

    async def cancel(self, upload: Mapping[str, Any]) -> httpx.Response:
        return await self.call("POST", f"{self.path}/{upload['id']}/cancel")
