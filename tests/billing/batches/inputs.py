"""Batches as tenants send them and read them back. Knows nothing of who runs them."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import httpx

from app.batches.schemas import CHAT, TEXT
from tests.builders.operator import Tenant
from tests.builders.tiny_base import MODEL_ID
from tests.builders.waiting import eventually

ENDED = ("failed", "completed", "expired", "cancelled")


def chat_line(name: str, text: str = "Hi", **body: Any) -> dict[str, Any]:
    sent = {
        "model": MODEL_ID,
        "messages": [{"role": "user", "content": text}],
        "max_tokens": 4,
        **body,
    }
    return {"custom_id": name, "method": "POST", "url": CHAT, "body": sent}


def text_line(name: str, prompt: str = "Hi", **body: Any) -> dict[str, Any]:
    sent = {"model": MODEL_ID, "prompt": prompt, "max_tokens": 4, **body}
    return {"custom_id": name, "method": "POST", "url": TEXT, "body": sent}


def jsonl(lines: Iterable[dict[str, Any]]) -> bytes:
    return b"".join(json.dumps(line).encode() + b"\n" for line in lines)


@dataclass(frozen=True, slots=True)
class Submitter:
    """One tenant's calls."""

    api: httpx.AsyncClient
    tenant: Tenant

    async def call(self, method: str, path: str, **options: Any) -> httpx.Response:
        return await self.api.request(method, f"/v1{path}", headers=self.tenant.headers, **options)

    async def upload(self, content: bytes) -> str:
        response = await self.call(
            "POST", "/files", data={"purpose": "batch"}, files={"file": ("in.jsonl", content)}
        )
        assert response.is_success, response.text
        return str(response.json()["id"])

    async def submit(
        self, lines: Sequence[dict[str, Any]] | bytes, endpoint: str = CHAT, **fields: Any
    ) -> dict[str, Any]:
        content = lines if isinstance(lines, bytes) else jsonl(lines)
        body = {
            "input_file_id": await self.upload(content),
            "endpoint": endpoint,
            "completion_window": "24h",
            **fields,
        }
        response = await self.call("POST", "/batches", json=body)
        assert response.is_success, response.text
        return dict(response.json())

    async def get(self, batch_id: str) -> dict[str, Any]:
        response = await self.call("GET", f"/batches/{batch_id}")
        assert response.is_success, response.text
        return dict(response.json())

    async def ended(self, batch_id: str, *, timeout_s: float = 60.0) -> dict[str, Any]:
        """The batch, once it has ended."""

        async def has_ended() -> bool:
            return (await self.get(batch_id))["status"] in ENDED

        await eventually(has_ended, timeout_s=timeout_s)
        return await self.get(batch_id)

    async def lines_of(self, file_id: str | None) -> dict[str, dict[str, Any]]:
        """A file of answers by `custom_id`; each is there once."""
        if file_id is None:
            return {}
        content = (await self.call("GET", f"/files/{file_id}/content")).content
        lines = [json.loads(line) for line in content.splitlines()]
        found = {line["custom_id"]: line for line in lines}
        assert len(found) == len(lines), "a line was answered twice"
        return found
