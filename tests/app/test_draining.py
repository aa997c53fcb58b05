"""An API process goes without cutting anybody off: at a signal, and when told to by an operator."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator

import httpx

from app.draining import Drain
from tests.builders.operator import ADMIN_KEY, OPERATOR
from tests.builders.waiting import wait_until
from tests.fixtures.processes import ApiProcess


def test_drain_is_over_when_nothing_runs_but_not_before_the_delay() -> None:
    now_s = [0.0]
    drain = Drain(delay_s=5, limit_s=60, clock=lambda: now_s[0])
    drain.enter()
    assert not drain.is_draining and not drain.is_over
    drain.begin()
    now_s[0] += 5
    assert not drain.is_over
    drain.leave()
    assert drain.is_over


def test_drain_waits_no_longer_than_its_limit() -> None:
    now_s = [0.0]
    drain = Drain(delay_s=5, limit_s=60, clock=lambda: now_s[0])
    drain.enter()
    drain.begin()
    now_s[0] += 64
    drain.begin()  # twice is once
    assert not drain.is_over
    now_s[0] += 1
    assert drain.is_over


def test_hurry_waits_for_nothing() -> None:
    drain = Drain(delay_s=5, limit_s=60)
    drain.enter()
    drain.hurry()
    assert drain.is_draining and drain.is_over


async def test_waiting_ends_when_the_last_request_leaves() -> None:
    drain = Drain(delay_s=0, limit_s=60)
    drain.enter()
    drain.begin()
    waiting = asyncio.create_task(drain.wait())
    await asyncio.sleep(0)
    assert not waiting.done()
    drain.leave()
    await asyncio.wait_for(waiting, 5)


def test_draining_process_is_not_ready_and_closes_connections(api_process: ApiProcess) -> None:
    with httpx.Client(base_url=api_process.admin_url, headers=OPERATOR) as admin:
        assert admin.get("/internal/drain").json()["is_draining"] is False
        assert "connection" not in httpx.get(f"{api_process.url}/livez").headers

        subprocess.run(
            [sys.executable, "-m", "app.cli", "drain", "--url", api_process.admin_url],
            env=os.environ | {"TENFOLD_ADMIN_KEY": ADMIN_KEY},
            check=True,
            timeout=30,
        )
        assert admin.get("/internal/drain").json()["is_drained"] is True
    ready = httpx.get(f"{api_process.url}/readyz")
    assert (ready.status_code, ready.json()) == (503, {"status": "draining"})
    assert httpx.get(f"{api_process.url}/livez").headers["connection"] == "close"


def test_signal_waits_for_a_request_that_runs(api_process: ApiProcess) -> None:
    """A body that is still being sent is a request that runs."""
    sent = threading.Event()
    answers: list[httpx.Response] = []

    def slow_body() -> Iterator[bytes]:
        yield b'{"model": '
        sent.wait(20)
        yield b'"x"}'

    def call() -> None:
        url = f"{api_process.url}/v1/chat/completions"
        answers.append(httpx.post(url, content=slow_body(), timeout=30))

    with httpx.Client(base_url=api_process.admin_url, headers=OPERATOR) as admin:
        client = threading.Thread(target=call)
        client.start()
        wait_until(lambda: admin.get("/internal/drain").json()["num_in_flight"] == 1, timeout_s=10)
        api_process.process.send_signal(signal.SIGTERM)
        wait_until(lambda: httpx.get(f"{api_process.url}/readyz").status_code == 503, timeout_s=10)
        time.sleep(0.3)  # a process that did not wait would be gone by then
        assert api_process.process.poll() is None
    sent.set()
    client.join(timeout=20)
    assert answers[0].status_code == 401  # answered, not cut
    assert api_process.process.wait(20) == 0
