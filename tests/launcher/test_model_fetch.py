"""A model is fetched once: from a Hub that this test serves, on this machine."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from app.launcher.errors import LauncherError
from app.launcher.model_fetch import MARK, fetch_model

FILES = {"config.json": b"{}", "tokenizer.json": b"{}", "model.safetensors": b"w" * 64}
COMMIT = "a" * 40


class Hub(BaseHTTPRequestHandler):
    asked: list[str] = []

    def do_GET(self) -> None:
        self._answer(has_body=True)

    def do_HEAD(self) -> None:
        self._answer(has_body=False)

    def _answer(self, *, has_body: bool) -> None:
        self.asked.append(self.path)
        name = self.path.rpartition("/")[2]
        if self.path.startswith("/api/models/acme/base"):
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
def hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """What was asked of it."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), Hub)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    endpoint = f"http://127.0.0.1:{server.server_address[1]}"
    monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", endpoint)
    Hub.asked.clear()
    yield Hub.asked
    server.shutdown()
    server.server_close()
    thread.join()


def test_model_is_fetched_once_and_without_weights_where_nobody_computes(
    hub: list[str], tmp_path: Path
) -> None:
    assert fetch_model("acme/base", tmp_path, with_weights=False)
    assert (tmp_path / "config.json").is_file() and not (tmp_path / "model.safetensors").exists()

    hub.clear()
    assert not fetch_model("acme/base", tmp_path, with_weights=False)
    assert hub == []

    assert fetch_model("acme/base", tmp_path)
    assert (tmp_path / "model.safetensors").read_bytes() == FILES["model.safetensors"]


def test_what_failed_leaves_no_mark(hub: list[str], tmp_path: Path) -> None:
    with pytest.raises(LauncherError):
        fetch_model("acme/other", tmp_path)
    assert not (tmp_path / MARK).exists()
