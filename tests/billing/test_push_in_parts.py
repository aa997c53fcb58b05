"""A push in parts that breaks off is gone on with by its id, against a real API process."""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import httpx
import pytest
from click.testing import Result
from typer.testing import CliRunner

from app.cli.admin import admin
from app.settings import Settings
from lora.base_spec import BaseSpec
from tests.builders.adapter_files import adapter_files, write_adapter
from tests.builders.operator import ADMIN_KEY
from tests.fixtures.processes import ApiProcess

PART_BYTES = 4096


@dataclass
class Line:
    """To the API, for `num_parts` parts; then it is cut. `parts`: the paths that went over it."""

    num_parts: int
    url: str = ""
    parts: list[str] = field(default_factory=list)


@contextmanager
def line_to(api_url: str, num_parts: int = 1000) -> Iterator[Line]:
    line = Line(num_parts)

    class Handler(BaseHTTPRequestHandler):
        def pass_on(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"] or 0))
            if self.command == "PUT":
                if len(line.parts) == line.num_parts:
                    self.close_connection = True
                    return  # not a word
                line.parts.append(self.path)
            names = ("authorization", "content-type", "x-content-sha256")
            headers = {name: self.headers[name] for name in names if name in self.headers}
            answer = httpx.request(
                self.command, api_url + self.path, content=body, headers=headers, trust_env=False
            )
            self.send_response(answer.status_code)
            self.send_header("content-type", answer.headers["content-type"])
            self.end_headers()
            self.wfile.write(answer.content)

        do_GET = do_POST = do_PUT = pass_on

        def log_message(self, format: str, *args: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as listening:
        line.url = f"http://127.0.0.1:{listening.server_port}"
        threading.Thread(target=listening.serve_forever, kwargs={"poll_interval": 0.01}).start()
        try:
            yield line
        finally:
            listening.shutdown()


@pytest.fixture
def settings(settings: Settings) -> Settings:
    return settings.model_copy(update={"upload_part_bytes": PART_BYTES})


def push(url: str, folder: Path, *how: str) -> Result:
    arguments = ("--url", url, "--key", ADMIN_KEY, "adapter", "push", str(folder))
    to = ("-t", "acme", "--name", "bot", "--wait", "0", "--json")
    return CliRunner().invoke(admin, [*arguments, *to, *how])


def test_a_push_in_parts_that_broke_off_sends_only_what_is_missing(
    api_process: ApiProcess, tiny_base: BaseSpec, tmp_path: Path
) -> None:
    connection = ["--url", api_process.admin_url, "--key", ADMIN_KEY]
    assert CliRunner().invoke(admin, [*connection, "tenant", "create", "acme"]).exit_code == 0
    folder = write_adapter(tmp_path / "bot", adapter_files(tiny_base, seed=1))
    num_bytes = [path.stat().st_size for path in folder.iterdir()]
    num_parts = sum(-(-each // PART_BYTES) for each in num_bytes)
    assert num_parts > 3

    with line_to(api_process.admin_url, num_parts=2) as line:
        broken = push(line.url, folder, "--resumable")
        assert broken.exit_code == 1 and "did not arrive" in broken.stderr
        first = line.parts
    found = re.search(r"--upload (upl_\w+)", broken.stderr)
    assert found is not None

    with line_to(api_process.admin_url) as line:
        resumed = push(line.url, folder, "--upload", found[1])
        assert resumed.exit_code == 0, resumed.output
        assert len(first) == 2 and len(line.parts) == num_parts - 2
        assert not {*first} & {*line.parts}
    version = json.loads(resumed.stdout)
    assert (version["version"], version["provenance"]["via"]) == ("v1", "parts")

    # The control: sent as one, it is the same version, by its digest.
    whole = json.loads(push(api_process.admin_url, folder).stdout)
    assert (whole["version"], whole["digest"]) == ("v1", version["digest"])
