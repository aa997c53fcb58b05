"""A model is fetched once: from a Hub that this test serves, on this machine."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import ClassVar

import pytest

from app.launcher.model_fetch import MARK, fetch_model

FILES = {"config.json": b"{}", "tokenizer.json": b"{}", "model.safetensors": b"w" * 64}
COMMIT = "a" * 40


class Hub(BaseHTTPRequestHandler):
    asked: ClassVar[list[str]] = []

    def do_GET(self) -> None:
        self._answer(has_body=True)

    def do_HEAD(self) -> None:
        self._answer(has_body=False)

    def _answer(self, *, has_body: bool) -> None:
        self.asked.append(self.path)
        name = self.path.rpartition("/")[2]
        if self.path.startswith("/api/models/acme/base/tree/"):
            body = json.dumps(
                [
                    {"type": "file", "path": each, "size": len(data), "oid": each}
                    for each, data in FILES.items()
                ]
            ).encode()
        elif self.path.startswith("/api/models/acme/base"):
            siblings = [{"rfilename": each} for each in FILES]
            body = json.dumps({"id": "acme/base", "sha": COMMIT, "siblings": siblings}).encode()
        elif self.path.startswith("/acme/base/resolve/") and name in FILES:
            body = FILES[name]
        else:
            self.send_error(404)
            return
        self.send_response(200)
        self.send_header("etag", f'"{name}"')
        self.send_header("x-repo-commit", COMMIT)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        if has_body:
            self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None: ...


@pytest.fixture
def hub() -> Iterator[str]:
    """Its URL."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), Hub)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    Hub.asked.clear()
    yield f"http://127.0.0.1:{server.server_address[1]}"
    server.shutdown()
    server.server_close()
    thread.join()


def fetch(hub: str, model: str, folder: Path, *options: str) -> int:
    """`tenfold fetch` in a process of its own, as the Hub's address is read at its import."""
    command = [sys.executable, "-m", "app.cli", "fetch", model, f"--to={folder}", *options]
    environment = os.environ | {"HF_ENDPOINT": hub, "HF_HUB_DISABLE_TELEMETRY": "1"}
    return subprocess.run(command, env=environment, check=False, timeout=60).returncode


def test_model_is_fetched_once_and_without_weights_where_nobody_computes(
    hub: str, tmp_path: Path
) -> None:
    assert fetch(hub, "acme/base", tmp_path, "--without-weights") == 0
    assert (tmp_path / "config.json").is_file() and not (tmp_path / "model.safetensors").exists()

    Hub.asked.clear()
    assert not fetch_model("acme/base", tmp_path, with_weights=False)
    assert Hub.asked == []

    assert fetch(hub, "acme/base", tmp_path) == 0
    assert (tmp_path / "model.safetensors").read_bytes() == FILES["model.safetensors"]


def test_what_failed_leaves_no_mark(hub: str, tmp_path: Path) -> None:
    assert fetch(hub, "acme/other", tmp_path) == 1
    assert not (tmp_path / MARK).exists()
