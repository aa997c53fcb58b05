"""A real web server with TLS on 127.0.0.1, which publishes what a test says and notes who asks.

Knows nothing of who asks. Invariant: what is not published is 404.
"""

from __future__ import annotations

import ssl
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from app.launcher.ports import LOOPBACK
from tests.chart.certificates import Certificate


@dataclass(frozen=True, slots=True)
class Redirect:
    to: str


@dataclass(frozen=True, slots=True)
class Status:
    code: int


@dataclass(frozen=True, slots=True)
class Answer:
    """`body` is called with what writes to the client; without `length` it is chunked."""

    body: Callable[[Callable[[bytes], None]], None]
    length: int | None = None
    headers: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Asked:
    path: str
    host: str | None
    token: str | None


Published = bytes | Redirect | Status | Answer


class HttpsServer:
    def __init__(self, host: str, certificate: Certificate) -> None:
        self.host = host
        self.published: dict[str, Published] = {}
        self.asked: list[Asked] = []
        self._server = ThreadingHTTPServer((LOOPBACK, 0), self._handler())
        self._server.daemon_threads = True
        trust = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        trust.load_cert_chain(certificate.path, certificate.key)
        self._server.socket = trust.wrap_socket(
            self._server.socket, server_side=True, do_handshake_on_connect=False
        )

    @property
    def port(self) -> int:
        return self._server.server_port

    @property
    def url(self) -> str:
        return f"https://{self.host}:{self.port}"

    def publish(self, folder: str, files: Mapping[str, bytes]) -> None:
        for name, content in files.items():
            self.published[f"/{folder}/{name}"] = content

    @contextmanager
    def running(self) -> Iterator[HttpsServer]:
        thread = threading.Thread(target=self._server.serve_forever, args=(0.02,))
        thread.start()
        try:
            yield self
        finally:
            self._server.shutdown()
            thread.join()
            self._server.server_close()

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        outer = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                headers = self.headers
                outer.asked.append(Asked(self.path, headers["host"], headers["authorization"]))
                answer = outer.published.get(self.path, Status(404))
                try:
                    self._give(answer)
                except OSError:
                    self.close_connection = True

            def _give(self, answer: Published) -> None:
                if isinstance(answer, Redirect):
                    self._begin(302, 0, {"location": answer.to})
                elif isinstance(answer, Status):
                    self._begin(answer.code, 0, {})
                elif isinstance(answer, bytes):
                    self._begin(200, len(answer), {})
                    self.wfile.write(answer)
                else:
                    self._begin(200, answer.length, answer.headers)
                    chunked = answer.length is None
                    answer.body(self._write_chunk if chunked else self._write)
                    if chunked:
                        self.wfile.write(b"0\r\n\r\n")

            def _begin(self, status: int, length: int | None, headers: Mapping[str, str]) -> None:
                self.send_response(status)
                for name, value in headers.items():
                    self.send_header(name, value)
                if length is None:
                    self.send_header("transfer-encoding", "chunked")
                else:
                    self.send_header("content-length", str(length))
                self.end_headers()

            def _write(self, data: bytes) -> None:
                self.wfile.write(data)

            def _write_chunk(self, data: bytes) -> None:
                self.wfile.write(b"%x\r\n%s\r\n" % (len(data), data))

            def log_message(self, format: str, *args: object) -> None:
                """Silent: the test looks at `asked`."""

        return Handler
