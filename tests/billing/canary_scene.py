"""One tenant of an installation, which says its canaries everywhere; and what it is told and gets.

Knows nothing of where canaries are looked for. Invariant: whatever is refused is in `refusals`, and
whatever text was generated for the tenant in `answers`.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from typing import Any

import httpx

from app.api_keys.secret import new_secret
from lora.base_spec import BaseSpec
from tests.builders.adapter_files import adapter_config, adapter_files
from tests.builders.part_sender import PartSender
from tests.builders.tiny_base import MODEL_ID
from tests.builders.waiting import eventually
from tests.faults.stack import Api

PROMPT = "canary-of-a-prompt-6f2d81"
VALUE = "canary-of-a-bad-value-93ab04"
CONFIG = "canary-of-an-adapter-51cc7e"
IDEMPOTENCY_KEY = "canary-of-a-repeated-request-0d77"
ADMIN_KEY = "canary-of-the-operator-2cc41f"
WRONG_KEYS = (new_secret(), "tf_canary-of-no-key-at-all-7765", "sk-canary-of-another-kind-31d9")
MIN_ANSWER_CHARS = 8
CHAT_PATH = "/v1/chat/completions"
CHAT = {"model": MODEL_ID, "messages": [{"role": "user", "content": PROMPT}]}
BATCH = {"endpoint": CHAT_PATH, "completion_window": "24h"}


class Scene:
    """`open` first; then `serve`, `refuse`, `run_batches` in any order; `close` at the end."""

    def __init__(self, api: Api, base: BaseSpec) -> None:
        self._base = base
        self._admin_url = api.admin_url
        headers = {"authorization": f"Bearer {ADMIN_KEY}"}
        self.admin = httpx.AsyncClient(
            base_url=f"{self._admin_url}/admin/v1", headers=headers, timeout=60
        )
        self.api = httpx.AsyncClient(base_url=api.url, timeout=60)
        self._bare = httpx.AsyncClient(base_url=api.url, timeout=60)
        self.refusals: list[bytes] = []
        self.answers: list[str] = []
        self.secrets: list[str] = []

    async def open(self) -> None:
        await self.sent(self.admin, "POST", "/tenants", json={"slug": "acme"})
        body = {"scopes": ["inference", "adapters:write", "keys:write", "usage:read"]}
        again = {"idempotency-key": IDEMPOTENCY_KEY}
        for _ in range(2):
            made = await self.sent(
                self.admin, "POST", "/tenants/acme/keys", json=body, headers=again
            )
        self.secrets.append(made.json()["secret"])
        rotated = await self.sent(
            self.admin, "POST", f"/tenants/acme/keys/{made.json()['id']}/rotate"
        )
        self.secrets.append(rotated.json()["secret"])
        self.api.headers["authorization"] = f"Bearer {self.secrets[-1]}"

    async def close(self) -> None:
        await self.admin.aclose()
        await self.api.aclose()
        await self._bare.aclose()

    async def sent(
        self, client: httpx.AsyncClient, method: str, path: str, **options: Any
    ) -> httpx.Response:
        answer = await client.request(method, path, **options)
        assert answer.status_code < 500, (path, answer.text)
        if answer.status_code >= 400:
            self.refusals.append(answer.content + str(answer.headers).encode())
        return answer

    async def metrics(self) -> bytes:
        """The API's."""
        return (await self.admin.get(f"{self._admin_url}/metrics")).raise_for_status().content

    async def serve(self) -> None:
        """What is answered."""
        plain = {"model": MODEL_ID, "prompt": [PROMPT, f"{PROMPT} again"]}
        for path, body in ((CHAT_PATH, CHAT), ("/v1/completions", plain)):
            for more in ({}, {"n": 2}, {"stream": True}, {"stop": [VALUE]}, {"user": VALUE}):
                sent = {**body, "max_tokens": 24, **more}
                answer = await self.sent(self.api, "POST", path, json=sent)
                if answer.is_success and not more.get("stream"):
                    self._note(answer.json())
        await asyncio.gather(*(self._leave() for _ in range(3)))
        await self.sent(self.api, "GET", "/v1/models")
        await self.sent(self.api, "GET", "/v1/usage", params={"start_time": 0})
        await self._upload(adapter_files(self._base))

    async def refuse(self) -> None:
        """What is refused, in every way that a client finds."""
        bad: list[dict[str, Any]] = [
            {**CHAT, "temperature": VALUE},
            {**CHAT, "messages": VALUE},
            {**CHAT, "messages": [{"role": VALUE, "content": PROMPT}]},
            {**CHAT, "messages": [{"role": "user", "content": {"text": VALUE}}]},
            {**CHAT, "messages": [{"role": "user", "content": [{"type": VALUE, "text": PROMPT}]}]},
            {**CHAT, "tools": [{"type": "function", "function": {"name": VALUE}}]},
            {**CHAT, "response_format": {"type": "json_schema", "json_schema": {"name": VALUE}}},
            {**CHAT, "logit_bias": {"1": VALUE}},
            {**CHAT, "max_tokens": VALUE},
            {**CHAT, "max_tokens": -1, "user": VALUE},
            {**CHAT, "service_tier": VALUE},
            {**CHAT, "metadata": VALUE},
            {**CHAT, "stop": {"a": VALUE}},
            {**CHAT, "messages": [{"role": "user", "content": f"{PROMPT} " * 20_000}]},
            {**CHAT, "model": "nobodys-model"},
        ]
        for body in bad:
            await self.sent(self.api, "POST", CHAT_PATH, json=body)
        for body in ({"model": MODEL_ID, "prompt": {"a": PROMPT}}, {"prompt": PROMPT}, [PROMPT]):
            await self.sent(self.api, "POST", "/v1/completions", json=body)
        prompt = PROMPT.encode()
        for content in (b'{"prompt": "' + prompt, prompt, b"\xff" + prompt, prompt * 200_000):
            await self.sent(self.api, "POST", "/v1/completions", content=content)
        for path in ("/v1/usage", "/v1/files", "/v1/batches", "/v1/models"):
            query = {"start_time": VALUE, "after": VALUE, "limit": VALUE, "group_by": VALUE}
            await self.sent(self.api, "GET", path, params=query)
        await self._refuse_keys()
        await self._refuse_operators()
        files = adapter_files(self._base)
        await self._upload(files | {"adapter_config.json": adapter_config(r=CONFIG)})
        await self._upload(files | {"adapter_config.json": f'{{"{CONFIG}'.encode()})
        await self._upload(files | {"adapter_model.safetensors": CONFIG.encode() * 100})
        await self._refuse_parts(files)
        await self._refuse_files()

    async def run_batches(self) -> list[bytes]:
        """What the tenant is told of its batches, and of their lines that failed."""
        lines = [
            _line("good", CHAT),
            _line("again", {**CHAT, "max_tokens": 12}),
            _line("wrong", {**CHAT, "temperature": VALUE}),
            _line("nobodys", {**CHAT, "model": "nobodys-model"}),
            _line("long", {**CHAT, "messages": [{"role": "user", "content": PROMPT * 5_000}]}),
        ]
        unreadable = [b"{" + PROMPT.encode(), json.dumps([PROMPT]).encode(), lines[0], lines[0]]
        batches = [await self._batch(lines), await self._batch(unreadable)]
        told = []
        for batch_id in batches:
            batch = await self._ended(batch_id)
            told.append(json.dumps(batch).encode())
            if (failed := batch["error_file_id"]) is not None:
                errors = await self.sent(self.api, "GET", f"/v1/files/{failed}/content")
                told.append(errors.content)
            if (served := batch["output_file_id"]) is not None:
                answers = await self.sent(self.api, "GET", f"/v1/files/{served}/content")
                for line in answers.text.splitlines():
                    self._note(json.loads(line)["response"]["body"])
        return told

    async def _batch(self, lines: list[bytes]) -> str:
        kept = await self._keep(b"\n".join(lines))
        body = {**BATCH, "input_file_id": kept.json()["id"]}
        made = await self.sent(self.api, "POST", "/v1/batches", json=body)
        return str(made.raise_for_status().json()["id"])

    async def _ended(self, batch_id: str) -> dict[str, Any]:
        found: dict[str, Any] = {}

        async def has_ended() -> bool:
            answer = await self.sent(self.api, "GET", f"/v1/batches/{batch_id}")
            found.update(answer.json())
            return found["status"] in ("completed", "failed")

        await eventually(has_ended, timeout_s=60)
        return found

    async def _keep(self, content: bytes, **fields: str) -> httpx.Response:
        return await self.sent(
            self.api,
            "POST",
            "/v1/files",
            data={"purpose": "batch", **fields},
            files={"file": ("in.jsonl", content)},
        )

    async def _refuse_files(self) -> None:
        """Of files and batches."""
        prompt = PROMPT.encode()
        for fields in ({"purpose": VALUE}, {"color": VALUE}, {"expires_after[seconds]": VALUE}):
            await self._keep(prompt, **fields)
        form = {"content-type": f"multipart/form-data; boundary={VALUE}"}
        for headers in (form, {"content-type": VALUE}, {**form, "content-encoding": VALUE}):
            await self.sent(self.api, "POST", "/v1/files", content=prompt, headers=headers)
        for path in (f"/v1/files/{VALUE}", f"/v1/files/{VALUE}/content", f"/v1/batches/{VALUE}"):
            await self.sent(self.api, "GET", path)
        for changes in (
            {"input_file_id": VALUE},
            {"input_file_id": VALUE, "endpoint": VALUE},
            {"input_file_id": VALUE, "completion_window": VALUE},
            {"input_file_id": [PROMPT], "metadata": {"a": PROMPT * 100}},
        ):
            await self.sent(self.api, "POST", "/v1/batches", json={**BATCH, **changes})
        await self.sent(self.api, "POST", f"/v1/batches/{VALUE}/cancel")

    async def _refuse_keys(self) -> None:
        for key in WRONG_KEYS:
            for headers in ({"authorization": f"Bearer {key}"}, {"x-api-key": key}):
                for path in ("/v1/models", f"{self._admin_url}/admin/v1/tenants"):
                    refused = await self.sent(self._bare, "GET", path, headers=headers)
                    assert refused.status_code == 401

    async def _refuse_operators(self) -> None:
        await self.sent(self.admin, "POST", "/tenants", json={"slug": "globex", "limits": VALUE})
        await self.sent(self.admin, "POST", "/prices", json={"currency": VALUE, "input": VALUE})
        await self.sent(
            self.admin,
            "POST",
            "/tenants",
            json={"slug": "globex"},
            headers={"idempotency-key": IDEMPOTENCY_KEY * 20},
        )

    async def _refuse_parts(self, files: Mapping[str, bytes]) -> None:
        """Of an upload in parts: bytes that are not those that were declared."""
        await self.sent(self.api, "POST", "/v1/adapters", json={"name": "parts"})
        sender = PartSender(self.api, {}, "/v1/adapters/parts/uploads")
        upload = await sender.begin(files)
        for part, content in sender.parts(upload, files):
            wrong = (CONFIG.encode() * len(content))[: len(content)]
            await self.sent(self.api, "PUT", part["url"], content=wrong)
            await self.sent(self.api, "PUT", part["url"], content=wrong + b"x")
        await self.sent(self.api, "POST", f"{sender.path}/{upload['id']}/complete")

    async def _upload(self, files: Mapping[str, bytes]) -> None:
        await self.sent(self.api, "POST", "/v1/adapters", json={"name": "bot"})
        await self.sent(
            self.api,
            "POST",
            "/v1/adapters/bot/versions",
            params={"wait": 30},
            files={name: (name, content) for name, content in files.items()},
        )

    async def _leave(self) -> None:
        body = {**CHAT, "stream": True, "max_tokens": 100}
        async with self.api.stream("POST", CHAT_PATH, json=body) as answer:
            async for _ in answer.aiter_bytes():
                return

    def _note(self, answer: Mapping[str, Any]) -> None:
        for choice in answer["choices"]:
            said = choice.get("text") or choice.get("message", {}).get("content") or ""
            if len(said.strip()) >= MIN_ANSWER_CHARS:
                self.answers.append(said)


def _line(name: str, body: Mapping[str, Any]) -> bytes:
    sent = {"max_tokens": 8, **body}
    line = {"custom_id": name, "method": "POST", "url": CHAT_PATH, "body": sent}
    return json.dumps(line).encode()
