"""`tenfold admin adapter pull` takes what the digest is over, and nothing a server makes up."""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result
from typer.testing import CliRunner

from app.cli.admin import admin
from lora.digest import FileDigest, adapter_digest

KEY = "admin-key-of-this-test"
HERE = "/admin/v1/tenants/acme/adapters/bot/versions/v1"
FILES = {"adapter_config.json": b"{}", "adapter_model.safetensors": b"weights" * 1000}


@dataclass
class Server:
    """An API, and a bucket beside it, that say what a test wants."""

    url: str = ""
    bodies: dict[str, bytes] = field(default_factory=dict)
    keys: dict[str, str | None] = field(default_factory=dict)

    def offer(self, files: dict[str, bytes], base: str = f"{HERE}/files", **changes: Any) -> None:
        rows = [FileDigest(name, len(data), sha256(data)) for name, data in files.items()]
        listed = [
            {
                "path": row.name,
                "bytes": row.num_bytes,
                "sha256": row.sha256,
                "url": f"{base}/{row.name}",
            }
            for row in rows
        ]
        told = {"version_id": "ver_1", "digest": adapter_digest(rows), "files": listed, **changes}
        self.bodies[f"{HERE}/download"] = json.dumps(told).encode()
        path = base.removeprefix(self.url)
        self.bodies |= {f"{path}/{name}": data for name, data in files.items()}


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


@pytest.fixture
def server() -> Iterator[Server]:
    known = Server()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            known.keys[self.path] = self.headers["authorization"]
            body = known.bodies.get(self.path)
            self.send_response(404 if body is None else 200)
            self.send_header("content-length", str(len(body or b"")))
            self.end_headers()
            self.wfile.write(body or b"")

        def log_message(self, format: str, *args: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as listening:
        known.url = f"http://127.0.0.1:{listening.server_port}"
        threading.Thread(target=listening.serve_forever, kwargs={"poll_interval": 0.01}).start()
        yield known
        listening.shutdown()


@pytest.fixture
def pull(server: Server, tmp_path: Path) -> Callable[[], Result]:
    def pull() -> Result:
        environment = {"TENFOLD_ADMIN_URL": server.url, "TENFOLD_ADMIN_KEY": KEY}
        arguments = ["adapter", "pull", "bot", "v1", str(tmp_path / "out"), "-t", "acme"]
        return CliRunner().invoke(admin, arguments, env=environment)

    return pull


def left(tmp_path: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(tmp_path)): path.read_bytes()
        for path in tmp_path.rglob("*")
        if path.is_file()
    }


def test_all_files_come_and_the_key_goes_to_the_api_alone(
    server: Server, pull: Callable[[], Result], tmp_path: Path
) -> None:
    server.offer(FILES, base=f"{server.url}/bucket")
    done = pull()
    assert done.exit_code == 0, done.output
    assert left(tmp_path) == {f"out/{name}": data for name, data in FILES.items()}
    assert server.keys.pop(f"{HERE}/download") == f"Bearer {KEY}"
    assert set(server.keys.values()) == {None} and len(server.keys) == len(FILES)


@pytest.mark.parametrize("name", ["../adapter_config.json", "/etc/passwd", "a\\b", "..", ""])
def test_a_name_that_leaves_the_folder_is_refused_before_anything_is_asked_for(
    server: Server, pull: Callable[[], Result], tmp_path: Path, name: str
) -> None:
    server.offer({**FILES, name: b"x"})
    done = pull()
    assert done.exit_code == 1 and "no name for a file" in done.stderr
    assert left(tmp_path) == {} and list(server.keys) == [f"{HERE}/download"]


def test_other_bytes_than_were_accepted_leave_nothing(
    server: Server, pull: Callable[[], Result], tmp_path: Path
) -> None:
    for wrong in (b"other", b"weights" * 999, b"weights" * 1001, b"x" * 7000):
        server.offer(FILES)
        server.bodies[f"{HERE}/files/adapter_model.safetensors"] = wrong
        done = pull()
        assert done.exit_code == 1 and "is not the file that was accepted" in done.stderr
        assert left(tmp_path) == {}


def test_a_list_that_the_digest_is_not_over_is_refused(
    server: Server, pull: Callable[[], Result], tmp_path: Path
) -> None:
    server.offer(FILES, digest=f"sha256:{'0' * 64}")
    done = pull()
    assert done.exit_code == 1 and "are not those of" in done.stderr
    assert left(tmp_path) == {}


def test_what_is_there_stays_as_it_is(
    server: Server, pull: Callable[[], Result], tmp_path: Path
) -> None:
    server.offer(FILES)
    (tmp_path / "out").mkdir()
    mine = tmp_path / "out" / "adapter_config.json"
    mine.symlink_to(tmp_path / "nowhere")
    done = pull()
    assert done.exit_code == 1 and "is there already" in done.stderr
    assert left(tmp_path) == {} and mine.is_symlink()


def test_a_file_that_is_not_to_be_had_is_said_to_be_so(
    server: Server, pull: Callable[[], Result], tmp_path: Path
) -> None:
    server.offer(FILES)
    del server.bodies[f"{HERE}/files/adapter_config.json"]
    done = pull()
    assert done.exit_code == 1 and "404" in done.stderr
    assert left(tmp_path) == {}
