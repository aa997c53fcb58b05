"""The steps of the smoke test: what a new customer does on the first day, and all of it undone.

Knows nothing of how the APIs are run. Invariant: what it made is removed again, also where a step
failed; nobody else's tenants are touched.
"""

from __future__ import annotations

import json
import secrets
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import httpx

ADAPTER = "smoke"
MAX_TOKENS = 8
POLL_S = 0.25
DONE = "[DONE]"
RETRIED = (429, 503)  # as any client would: they say when


class SmokeError(Exception):
    """A step did not end as it should; the message says which and how."""


class SmokeCheck:
    """`run()`. `url` is the tenants' port, `admin_url` the other; `files` an adapter's, by name."""

    def __init__(
        self,
        url: str,
        admin_url: str,
        admin_key: str,
        files: Mapping[str, bytes],
        *,
        timeout_s: float,
        say: Callable[[str], None],
    ) -> None:
        self._give_up_at = time.monotonic() + timeout_s
        self._say = say
        self._files = files
        self._slug = f"smoke-{secrets.token_hex(4)}"
        headers = {"authorization": f"Bearer {admin_key}"}
        self._admin = httpx.Client(
            base_url=f"{admin_url}/admin/v1", headers=headers, timeout=timeout_s, trust_env=False
        )
        self._api = httpx.Client(base_url=url, timeout=timeout_s, trust_env=False)

    def run(self) -> None:
        """Raises SmokeError."""
        with self._admin, self._api:
            self._step("ready", self._wait_until_ready)
            with self._tenant() as key:
                self._step("adapter", self._upload)
                request_id = self._step("chat", lambda: self._chat(key))
                self._step("usage", lambda: self._wait_for_usage(request_id))
            self._step("removed", lambda: self._check_removed(key))

    def _step(self, name: str, do: Callable[[], Any]) -> Any:
        started_at = time.monotonic()
        try:
            result = do()
        except httpx.HTTPError as error:
            raise SmokeError(f"{name}: {type(error).__name__}: {error}") from error
        self._say(f"{name}: ok ({time.monotonic() - started_at:.1f} s)")
        return result

    def _wait_until_ready(self) -> None:
        """An engine may still be loading its model, or be started because somebody asks."""
        answer = "no answer"
        while time.monotonic() < self._give_up_at:
            try:
                response = self._api.get("/readyz")
                if response.is_success:
                    return
                answer = response.text
            except httpx.TransportError as error:
                answer = str(error)
            time.sleep(POLL_S)
        raise SmokeError(f"ready: {answer}")

    @contextmanager
    def _tenant(self) -> Iterator[str]:
        """The secret of a key of a tenant that is there for the length of the block."""
        path = f"/tenants/{self._slug}"
        self._step("tenant", lambda: self._call("POST", "/tenants", json={"slug": self._slug}))
        try:
            key = self._step("key", lambda: self._call("POST", f"{path}/keys", json={}))
            yield key["secret"]
        finally:
            self._admin.delete(f"{path}/adapters/{ADAPTER}?force=true")
            self._admin.delete(path)

    def _upload(self) -> None:
        path = f"/tenants/{self._slug}/adapters"
        self._call("POST", path, json={"name": ADAPTER})
        files = {name: (name, data) for name, data in self._files.items()}
        versions = f"{path}/{ADAPTER}/versions"
        version = self._call("POST", versions, files=files, params={"wait": 60})
        while version["state"] == "verifying" and time.monotonic() < self._give_up_at:
            time.sleep(POLL_S)
            version = self._call("GET", f"{versions}/{version['version']}")
        if version["state"] != "active":
            raise SmokeError(f"adapter: {version['state']}: {version['report']}")
        self._call("PUT", f"{path}/{ADAPTER}/aliases/prod", json={"version": version["version"]})

    def _chat(self, key: str) -> str:
        """Stream an answer of the adapter; the ledger's id of it."""
        body = {
            "model": ADAPTER,
            "messages": [{"role": "user", "content": "Say hello."}],
            "max_tokens": MAX_TOKENS,
            "stream": True,
        }
        headers = {"authorization": f"Bearer {key}"}
        path = "/v1/chat/completions"
        while True:
            with self._api.stream("POST", path, json=body, headers=headers) as response:
                if response.is_success:
                    frames = [
                        line[6:] for line in response.iter_lines() if line.startswith("data: ")
                    ]
                    break
                answer = f"chat: {response.status_code}: {response.read().decode()}"
            if response.status_code not in RETRIED or time.monotonic() > self._give_up_at:
                raise SmokeError(answer)
            time.sleep(float(response.headers.get("retry-after", POLL_S)))
        if not frames or frames[-1] != DONE:
            raise SmokeError(f"chat: the stream did not end: {frames[-1:]}")
        chunks = [json.loads(frame) for frame in frames[:-1]]
        if not any(choice["finish_reason"] for each in chunks for choice in each["choices"]):
            raise SmokeError(f"chat: no finish reason in {len(chunks)} chunks")
        return f"{chunks[0]['id'].removeprefix('chatcmpl-')}-0"

    def _wait_for_usage(self, request_id: str) -> None:
        """Until the ledger says how the request ended, and that it generated something."""
        said = ""
        while time.monotonic() < self._give_up_at:
            found = self._admin.get(f"/requests/{request_id}")
            said = found.text
            events = found.json().get("events", []) if found.is_success else []
            final = [event for event in events if event["event"] == "final"]
            if final and final[0]["num_generated_tokens"] > 0:
                return
            time.sleep(POLL_S)
        raise SmokeError(f"usage: the ledger has no end of {request_id}: {said}")

    def _check_removed(self, key: str) -> None:
        status = self._api.get("/v1/models", headers={"authorization": f"Bearer {key}"}).status_code
        if status != httpx.codes.UNAUTHORIZED:
            raise SmokeError(f"removed: the key is still taken: {status}")

    def _call(self, method: str, path: str, **options: Any) -> dict[str, Any]:
        response = self._admin.request(method, path, **options)
        if not response.is_success:
            raise SmokeError(f"{method} {path}: {response.status_code}: {response.text}")
        body = response.json()
        assert isinstance(body, dict)
        return body


def _frames(lines: Iterator[str]) -> Iterator[str]:
    """The data of server-sent events; comments keep the connection alive and say nothing."""
    for line in lines:
        if line.startswith("data: "):
            yield line.removeprefix("data: ")
