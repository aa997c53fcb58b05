"""What probes are told of an engine, over HTTP, at every stage of its life."""

from __future__ import annotations

import socket
import struct
from collections.abc import Iterator
from dataclasses import dataclass

import httpx
import pytest

from engine.health import EngineHealth, HealthServer


@dataclass
class LoopState:
    is_advancing: bool = True
    is_draining: bool = False


@pytest.fixture
def health() -> EngineHealth:
    return EngineHealth()


@pytest.fixture
def probes(health: EngineHealth) -> Iterator[httpx.Client]:
    server = HealthServer("127.0.0.1", 0, health, {"/metrics": lambda: ("text/plain", b"x 1\n")})
    with httpx.Client(base_url=f"http://127.0.0.1:{server.port}", trust_env=False) as client:
        yield client
    server.close()


def statuses(probes: httpx.Client) -> tuple[int, int, int]:
    paths = ("/livez", "/readyz?phase=startup", "/readyz")
    live, startup, ready = (probes.get(path).status_code for path in paths)
    return live, startup, ready


def test_slow_load_is_alive_and_says_how_far_it_is(probes: httpx.Client) -> None:
    assert statuses(probes) == (200, 503, 503)
    assert probes.get("/readyz?phase=startup").json()["stage"] == "loading"


def test_draining_engine_has_started_and_is_not_ready(
    probes: httpx.Client, health: EngineHealth
) -> None:
    loop = LoopState()
    health.watch(loop)
    assert statuses(probes) == (200, 200, 200)
    loop.is_draining = True
    assert statuses(probes) == (200, 200, 503)
    assert probes.get("/readyz").json()["stage"] == "draining"


def test_hung_engine_is_not_alive(probes: httpx.Client, health: EngineHealth) -> None:
    health.watch(LoopState(is_advancing=False))
    assert statuses(probes) == (503, 503, 503)


def test_only_what_is_named_is_served(probes: httpx.Client) -> None:
    assert probes.get("/metrics").text == "x 1\n"
    assert probes.get("/etc/passwd").status_code == 404
    assert probes.post("/livez").status_code == 501


def test_who_does_not_wait_for_the_answer_disturbs_nobody(
    probes: httpx.Client, capfd: pytest.CaptureFixture[str]
) -> None:
    for _ in range(3):
        with socket.create_connection((probes.base_url.host, probes.base_url.port or 0)) as early:
            early.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            early.sendall(b"GET /metrics HTTP/1.1\r\n\r\n")
    assert statuses(probes) == (200, 503, 503)
    assert "Traceback" not in capfd.readouterr().err
