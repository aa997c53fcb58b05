"""Streams through a real nginx, told what the chart's Ingress tells one: frames come as they are.

E07 of the cases from the field: a proxy that buffers makes of a stream one late answer.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from http.client import HTTPConnection
from itertools import pairwise
from pathlib import Path
from urllib.parse import urlsplit

import httpx
import pytest

from app.settings import Settings
from tests.builders.operator import OPERATOR
from tests.builders.stub_engine import StubEngine
from tests.builders.tiny_base import MODEL_ID
from tests.chart.rendering import of_kind, render
from tests.chart.servers import nginx
from tests.fixtures.processes import ApiProcess

NUM_TOKENS = 24
STEP_S = 0.1
UVICORNS_OWN_KEEP_ALIVE_S = 5
# What ingress-nginx says in any case, and a compression that waits for more while it may.
ALWAYS = {
    "proxy_http_version": "1.1",
    "proxy_set_header": 'Connection ""',
    "gzip": "on",
    "gzip_types": "text/event-stream",
    "gzip_proxied": "any",
    "gzip_min_length": "0",
}
# What an nginx does that was told nothing, and does not hear what the response says of it.
BUFFERING = {"proxy_buffering": "on", "proxy_ignore_headers": "X-Accel-Buffering"}
PREFIX = "nginx.ingress.kubernetes.io/"
OTHERWISE_CALLED = {"proxy-body-size": "client_max_body_size"}


def directives_of_the_chart() -> dict[str, str]:
    """What the annotations of the rendered Ingress make ingress-nginx write."""
    (ingress,) = of_kind(render("prod"), "Ingress")
    names = {
        name.removeprefix(PREFIX): value
        for name, value in ingress["metadata"]["annotations"].items()
        if name.startswith(PREFIX)
    }
    return {
        OTHERWISE_CALLED.get(name, name.replace("-", "_")): value for name, value in names.items()
    }


@pytest.fixture
def headers(api_process: ApiProcess, settings: Settings) -> Iterator[Mapping[str, str]]:
    """A tenant's, while an engine answers slowly."""
    with httpx.Client(base_url=f"{api_process.admin_url}/admin/v1", headers=OPERATOR) as admin:
        admin.post("/tenants", json={"slug": "acme"}).raise_for_status()
        key = admin.post("/tenants/acme/keys", json={}).raise_for_status().json()
    with StubEngine(settings.redis_url, step_s=STEP_S):
        yield {"x-api-key": key["secret"]}


def arrivals(url: str, headers: Mapping[str, str]) -> list[float]:
    """When each frame of a stream came, in seconds since the first."""
    body = {"model": MODEL_ID, "prompt": "abcdefgh", "max_tokens": NUM_TOKENS, "stream": True}
    with httpx.stream(
        "POST", f"{url}/v1/completions", json=body, headers=headers, timeout=60
    ) as response:
        assert response.status_code == 200, response.read()
        assert response.headers["content-type"].startswith("text/event-stream")
        times = [time.monotonic() for line in response.iter_lines() if line.startswith("data: ")]
    return [each - times[0] for each in times]


def is_streamed(times: list[float]) -> bool:
    """Whether the frames came over the time that their tokens took, and none waited for many."""
    longest = max(after - before for before, after in pairwise(times))
    whole = NUM_TOKENS * STEP_S
    return times[-1] > 0.6 * whole and longest < 0.5 * whole


@pytest.mark.parametrize("told", ["by the chart's annotations", "by the response alone"])
def test_frames_pass_nginx_as_they_come(
    told: str, api_process: ApiProcess, headers: Mapping[str, str], tmp_path: Path
) -> None:
    is_told = told == "by the chart's annotations"
    directives = directives_of_the_chart() if is_told else {}
    with nginx(api_process.url, ALWAYS | directives, tmp_path) as url:
        times = arrivals(url, headers)
    assert len(times) > NUM_TOKENS / 2 and is_streamed(times), times


def test_control_a_proxy_that_buffers_is_noticed(
    api_process: ApiProcess, headers: Mapping[str, str], tmp_path: Path
) -> None:
    with nginx(api_process.url, ALWAYS | BUFFERING, tmp_path) as url:
        times = arrivals(url, headers)
    assert len(times) > NUM_TOKENS / 2 and not is_streamed(times), times


def test_the_annotations_are_those_of_nginx() -> None:
    assert directives_of_the_chart().keys() == {
        "proxy_buffering",
        "proxy_request_buffering",
        "proxy_read_timeout",
        "proxy_send_timeout",
        "client_max_body_size",
    }


def test_idle_connections_are_kept_longer_than_a_server_would_by_itself(
    api_process: ApiProcess,
) -> None:
    """A proxy that sends on a connection which is just being closed has lost a request."""
    address = urlsplit(api_process.url)
    assert address.hostname is not None
    connection = HTTPConnection(address.hostname, address.port, timeout=10)
    for pause_s in (0.0, UVICORNS_OWN_KEEP_ALIVE_S + 1.0):
        time.sleep(pause_s)
        connection.request("GET", "/livez")
        assert connection.getresponse().read() == b'{"status":"ok"}'
        assert connection.sock is not None, "it is still open"
    connection.close()
