"""What an engine tells Kubernetes: how far it is, whether it lives, whether it takes requests.

    /livez                  200 unless a step hung or a thread died; whatever Redis does
    /readyz                 200 while it takes requests: not while it loads or drains
    /readyz?phase=startup   200 from when it could take requests on; the body says how far it is

A thread of its own answers, from before the model is loaded. Knows nothing of the step loop but two
questions. Invariant: an answer waits for nothing, neither for a step nor for another server.
"""

from __future__ import annotations

import json
import sys
import threading
import time
from collections.abc import Callable, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Protocol
from urllib.parse import parse_qs, urlsplit

import structlog

log = structlog.get_logger(__name__)

LOADING = "loading"
READY = "ready"
DRAINING = "draining"
FAILED = "failed"
REQUEST_TIMEOUT_S = 5.0
JSON = "application/json"

Page = Callable[[], tuple[str, bytes]]
"""Content type and body of a page that is made when it is asked for."""


class WatchedLoop(Protocol):
    @property
    def is_advancing(self) -> bool:
        """Whether every thread runs and no step has hung."""

    @property
    def is_draining(self) -> bool:
        """Whether nothing new is taken any more."""


class EngineHealth:
    """One per process: `loading` until `watch` is called."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._started_at = clock()
        self._loop: WatchedLoop | None = None

    def watch(self, loop: WatchedLoop) -> None:
        """The model is loaded, and `loop` is about to take requests."""
        self._loop = loop

    @property
    def stage(self) -> str:
        loop = self._loop
        if loop is None:
            return LOADING
        if not loop.is_advancing:
            return FAILED
        return DRAINING if loop.is_draining else READY

    def live(self) -> tuple[int, Mapping[str, object]]:
        """Status and body of `/livez`."""
        return self._answer(self.stage != FAILED)

    def ready(self, *, is_startup: bool = False) -> tuple[int, Mapping[str, object]]:
        """Status and body of `/readyz`."""
        good = (READY, DRAINING) if is_startup else (READY,)
        return self._answer(self.stage in good)

    def _answer(self, is_good: bool) -> tuple[int, Mapping[str, object]]:
        uptime_s = round(self._clock() - self._started_at, 1)
        return 200 if is_good else 503, {"stage": self.stage, "uptime_s": uptime_s}


class HealthServer:
    """Answers from its construction until `close`."""

    def __init__(
        self, host: str, port: int, health: EngineHealth, pages: Mapping[str, Page] | None = None
    ) -> None:
        """pages: what else is served, by path. Raises OSError where the port is taken."""
        self._server = _Server((host, port), _handler(health, pages or {}))
        self._thread = threading.Thread(
            target=self._server.serve_forever, name="health", daemon=True
        )
        self._thread.start()

    @property
    def port(self) -> int:
        return int(self._server.server_address[1])

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, request: object, client_address: object) -> None:
        """Whoever asked may have gone, since it waits for no longer than it wants to."""
        if not isinstance(sys.exception(), OSError):
            log.exception("health_request_failed")


def _handler(health: EngineHealth, pages: Mapping[str, Page]) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        timeout = REQUEST_TIMEOUT_S
        server_version = "tenfold"
        sys_version = ""

        def do_GET(self) -> None:  # the name is http.server's
            url = urlsplit(self.path)
            if url.path == "/livez":
                self._send_json(*health.live())
            elif url.path == "/readyz":
                phase = parse_qs(url.query).get("phase", [""])[0]
                self._send_json(*health.ready(is_startup=phase == "startup"))
            elif url.path in pages:
                self._send(200, *pages[url.path]())
            else:
                self._send_json(404, {"error": "not found"})

        def _send_json(self, status: int, body: Mapping[str, object]) -> None:
            self._send(status, JSON, json.dumps(body).encode())

        def _send(self, status: int, content_type: str, body: bytes) -> None:
            self.send_response(status)
            self.send_header("content-type", content_type)
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:
            """Probes are no events."""

    return Handler
