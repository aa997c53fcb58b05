"""Control of `tests/fixtures/canaries.py`: a leak is heard, wherever it is, and fails the run."""

from __future__ import annotations

import base64
import json
import os
import shutil
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from urllib.parse import quote

import httpx
import pytest

from app.api_keys.secret import new_secret
from tests.builders.canaries import PROMPT, Canaries
from tests.builders.operator import ADMIN_KEY
from tests.fixtures.canaries import CANARIES, heard, leaks_expected, logs_below

CHECKOUT = Path(__file__).parents[2]
KEY = new_secret()
LEAKING_TESTS = f'''
import sys
from pathlib import Path

def test_clean():
    print("it says nothing")

def test_printed():
    print("the prompt was", "{PROMPT}")

def test_printed_to_stderr():
    sys.stderr.write('{{"key": "{KEY}"}}')
'''
LEAKING_LOG = f"""
def test_of_a_process(tmp_path):
    (tmp_path / "worker.log").write_text("the key is {ADMIN_KEY}")
"""


@pytest.mark.parametrize("spelled", [str, json.dumps, lambda each: each.encode().hex(), quote])
def test_control_a_canary_that_got_out_is_found(spelled: Callable[[str], str]) -> None:
    canaries = Canaries({"prompt": PROMPT, "key": "sk-canary-of-another-kind-31d9"})
    for name, canary in (("prompt", PROMPT), ("key", "sk-canary-of-another-kind-31d9")):
        leaked = f'{{"event": "x", "detail": "{spelled(canary)}"}}'.encode()
        assert canaries.found_in(leaked) == [name]
    assert canaries.found_in(b'{"event": "x"}') == []


@pytest.mark.parametrize("begin", range(6))
def test_control_a_canary_within_base_64_is_found(begin: int) -> None:
    leaked = base64.b64encode(b"x" * begin + PROMPT.encode() + b"yyyy")
    assert Canaries({"prompt": PROMPT}).found_in(leaked) == ["prompt"]


def test_control_a_key_is_known_by_its_form_and_what_is_none_is_not() -> None:
    assert CANARIES.found_in(f"of {KEY}, or".encode()) == ["an API key"]
    mistyped = KEY[:-1] + ("0" if KEY[-1] != "0" else "1")
    assert CANARIES.found_in(mistyped.encode() + b"tf_short") == []


def leaking(request: httpx.Request) -> httpx.Response:
    status = 400 if request.url.path == "/v1/models" else 200
    return httpx.Response(status, json={"said": KEY})


PATHS = ("/v1/models", "/metrics", "/admin/v1/keys")  # who makes a key is told it
HEARD = ["400 for /v1/models: an API key", "/metrics: an API key"]


def test_control_an_error_or_a_metric_with_a_secret_is_heard() -> None:
    transport = httpx.MockTransport(leaking)
    with (
        leaks_expected() as found,
        httpx.Client(transport=transport, base_url="http://t") as client,
    ):
        for path in PATHS:
            client.get(path)
    assert found == HEARD


async def test_control_an_error_or_a_metric_with_a_secret_is_heard_on_an_event_loop() -> None:
    transport = httpx.MockTransport(leaking)
    with leaks_expected() as found:
        async with httpx.AsyncClient(transport=transport, base_url="http://t") as client:
            for path in PATHS:
                await client.get(path)
    assert found == HEARD


def frame(value: object) -> bytes:
    return b"data: " + json.dumps(value, separators=(",", ":")).encode() + b"\n\n"


OF_AN_ANSWER = frame({"choices": [{"delta": {"content": PROMPT}}]})  # it is whose client asked it
QUOTING = frame({"choices": [{"delta": {"content": f'{{"error": "{PROMPT}"}}'}}]})
LEAKING_EVENT = frame({"error": {"message": f"no engine took {PROMPT!r}", "code": "engine_lost"}})
NAMED_EVENT = b"event: error\n" + frame({"type": "overloaded_error", "message": KEY})


def pieces(content: bytes, size: int = 7) -> Iterator[bytes]:
    """As a network may cut it."""
    for begin in range(0, len(content), size):
        yield content[begin : begin + size]


def streaming(content: bytes, media_type: str = "text/event-stream; charset=utf-8") -> httpx.Client:
    def answer(request: httpx.Request) -> httpx.Response:
        return httpx.Response(200, headers={"content-type": media_type}, content=pieces(content))

    return httpx.Client(transport=httpx.MockTransport(answer), base_url="http://t")


@pytest.mark.parametrize(
    ("event", "name"),
    [
        (LEAKING_EVENT, "a prompt"),
        (NAMED_EVENT, "an API key"),
        (LEAKING_EVENT.rstrip(), "a prompt"),  # the connection was cut before its end
    ],
)
def test_control_an_error_within_a_stream_that_says_a_secret_is_heard(
    event: bytes, name: str
) -> None:
    content = OF_AN_ANSWER + event
    with leaks_expected() as found, streaming(content) as client:
        with client.stream("POST", "/v1/chat/completions") as response:
            assert b"".join(response.iter_bytes()) == content, "nothing is changed of it"
        assert client.post("/v1/chat/completions").content == content
    assert found == [f"an error within /v1/chat/completions: {name}"] * 2


async def test_control_an_error_within_a_stream_is_heard_on_an_event_loop() -> None:
    content = OF_AN_ANSWER + LEAKING_EVENT

    async def answer(request: httpx.Request) -> httpx.Response:
        async def chunks() -> AsyncIterator[bytes]:
            for piece in pieces(content):
                yield piece

        kind = {"content-type": "text/event-stream"}
        return httpx.Response(200, headers=kind, content=chunks())

    transport = httpx.MockTransport(answer)
    with leaks_expected() as found:
        async with (
            httpx.AsyncClient(transport=transport, base_url="http://t") as client,
            client.stream("POST", "/v1/completions") as response,
        ):
            lines = [line async for line in response.aiter_lines()]
    assert lines == content.decode().split("\n")[:-1]
    assert found == ["an error within /v1/completions: a prompt"]


def test_an_answer_may_repeat_its_prompt_and_no_other_body_is_taken_for_a_stream() -> None:
    with leaks_expected() as found:
        for content, kind in (
            (OF_AN_ANSWER + QUOTING, "text/event-stream"),
            (LEAKING_EVENT, "application/octet-stream"),
        ):
            with streaming(content, kind) as client:
                assert client.get("/v1/files/file_1/content").content == content
    assert found == []


def test_control_a_span_with_a_prompt_is_heard() -> None:
    with leaks_expected() as found:
        heard("a span", json.dumps({"attributes": {"gen_ai.prompt": PROMPT}}))
    assert found == ["a span: a prompt"]


def test_control_logs_are_found_wherever_a_test_keeps_them(tmp_path: Path) -> None:
    for name in ("a.log", "b/c/worker.log", "seaweedfs/log", "d/output.txt"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    found = {str(path.relative_to(tmp_path)) for path in logs_below(tmp_path)}
    assert found == {"a.log", "b/c/worker.log", "seaweedfs/log"}


def test_control_a_run_with_a_leak_fails_and_says_where(tmp_path: Path) -> None:
    """What is printed fails its own test; what is in a log the last one, when all is over."""
    (tmp_path / "pytest.ini").touch()
    (tmp_path / "test_a.py").write_text(LEAKING_TESTS)
    (tmp_path / "test_b.py").write_text(LEAKING_LOG)
    kept = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST")}
    options = ["-p", "tests.fixtures.canaries", "-p", "no:cacheprovider"]
    places = [f"--basetemp={tmp_path / 'kept'}", f"--rootdir={tmp_path}", str(tmp_path)]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", *options, *places],
        cwd=CHECKOUT,
        env=kept | {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
        capture_output=True,
        text=True,
        timeout=120,
    )
    shutil.rmtree(tmp_path / "kept")  # or the run that this is would hear it too
    assert done.returncode == 1, done.stdout + done.stderr
    assert "4 passed, 3 errors" in done.stdout, done.stdout
    for said in (
        "Captured stdout call: a prompt",
        "Captured stderr call: an API key",
        "worker.log: the operator's key",
    ):
        assert said in done.stdout
