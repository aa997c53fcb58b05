"""The load generator: what it counts is what a real server sent, and when it was due."""

from __future__ import annotations

import asyncio
import json
import socket
import threading
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import httpx
import pytest
import typer
import uvicorn
from fastapi import FastAPI, Request, Response
from fastapi.responses import StreamingResponse

from bench.load import arrival_offsets, closed_loop, open_loop
from bench.openai_stream import Sample, Target, measure, synthetic_prompt
from bench.report import figures, percentile_ms
from bench.serving import demo_targets, main, parse_target

NUM_TOKENS = 5
BASE = "HuggingFaceTB/SmolLM2-135M-Instruct"


def scripted_server() -> FastAPI:
    """Streams as OpenAI does; the model's name says how the stream goes wrong."""
    app = FastAPI()

    @app.post("/v1/chat/completions")
    async def chat(request: Request) -> Response:
        body = await request.json()
        if request.headers["authorization"] != "Bearer key":
            return Response(status_code=401)
        return StreamingResponse(events(body["model"]), media_type="text/event-stream")

    async def events(model: str) -> AsyncIterator[str]:
        yield event({"choices": [{"delta": {"role": "assistant"}, "finish_reason": None}]})
        for _ in range(NUM_TOKENS):
            yield event({"choices": [{"delta": {"content": "x"}, "finish_reason": None}]})
            await asyncio.sleep(0.005)
        if model == "fails":
            yield event({"error": {"code": "engine_lost", "message": "gone"}})
        if model == "stops-short":
            return
        yield event({"choices": [{"delta": {}, "finish_reason": "length"}]})
        yield event({"choices": [], "usage": {"prompt_tokens": 3, "completion_tokens": NUM_TOKENS}})
        yield "data: [DONE]\n\n"

    def event(content: object) -> str:
        return f"data: {json.dumps(content)}\n\n"

    return app


@pytest.fixture(scope="module")
def server_url() -> Iterator[str]:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        server = uvicorn.Server(uvicorn.Config(scripted_server(), log_level="error", ws="none"))
        thread = threading.Thread(target=lambda: server.run(sockets=[listener]))
        thread.start()
        while not server.started:
            time.sleep(0.01)
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        server.should_exit = True
        thread.join()


async def one_sample(server_url: str, model: str, key: str = "key") -> Sample:
    async with httpx.AsyncClient(base_url=f"{server_url}/v1/") as client:
        target = Target("t", model, key)
        return await measure(client, target, "hi", max_tokens=8, due_at=time.perf_counter())


async def test_a_good_stream_is_counted_by_its_usage(server_url: str) -> None:
    sample = await one_sample(server_url, "good")
    assert sample.error is None
    assert (sample.prompt_tokens, sample.output_tokens) == (3, NUM_TOKENS)
    assert sample.ttft_s is not None and sample.ttft_s > 0
    assert len(sample.gaps_s) == NUM_TOKENS - 1


@pytest.mark.parametrize(
    ("model", "key", "error"),
    [
        ("fails", "key", "engine_lost"),
        ("stops-short", "key", "no_done"),
        ("good", "wrong", "http_401"),
    ],
)
async def test_what_goes_wrong_is_an_error_with_a_name(
    server_url: str, model: str, key: str, error: str
) -> None:
    assert (await one_sample(server_url, model, key)).error == error


async def test_a_server_that_is_not_there_is_an_error() -> None:
    assert (await one_sample("http://127.0.0.1:9", "good")).error == "ConnectError"


async def test_the_closed_loop_keeps_exactly_its_streams_in_flight() -> None:
    in_flight, most, seen = 0, 0, []

    async def send(index: int, due_at: float) -> Sample:
        nonlocal in_flight, most
        in_flight += 1
        most = max(most, in_flight)
        await asyncio.sleep(0)
        in_flight -= 1
        seen.append(index)
        return Sample("t", due_at, due_at)

    samples = await closed_loop(send, streams=3, requests=10, on_done=lambda _: None)
    assert most == 3
    assert sorted(seen) == list(range(10))
    assert len(samples) == 10


async def test_the_open_loop_counts_waiting_from_when_a_request_was_due() -> None:
    """A server that answers one at a time must show its queue as latency, not as less load."""
    lock = asyncio.Lock()

    async def send(_index: int, due_at: float) -> Sample:
        async with lock:
            await asyncio.sleep(0.02)
        now = time.perf_counter()
        return Sample("t", due_at, now, ttft_s=now - due_at)

    samples = await open_loop(send, rate=1000, requests=20, seed=1, on_done=lambda _: None)
    waits = sorted(s.ttft_s for s in samples if s.ttft_s is not None)
    assert len(waits) == 20
    assert waits[-1] > 10 * 0.02


def test_arrivals_and_prompts_are_the_seed_s() -> None:
    assert arrival_offsets(5, 50, 1) == arrival_offsets(5, 50, 1) != arrival_offsets(5, 50, 2)
    prompts = {synthetic_prompt(0, index, 20) for index in range(50)}
    assert len(prompts) == 50
    assert synthetic_prompt(0, 7, 20) in prompts
    assert synthetic_prompt(1, 7, 20) not in prompts


def test_percentiles_are_values_that_were_seen() -> None:
    values = [n / 1000 for n in range(1, 101)]
    assert percentile_ms(values, 50) == 50
    assert percentile_ms(values, 99) == 99
    assert percentile_ms([0.5], 99) == 500
    assert percentile_ms([], 50) is None


def test_throughput_is_tokens_over_the_whole_run() -> None:
    samples = [
        Sample("t", 0.0, 2.0, ttft_s=0.5, gaps_s=(0.1,), output_tokens=30),
        Sample("t", 1.0, 4.0, output_tokens=10, error="no_done"),
    ]
    run = figures("name", "load", samples)
    assert run.output_tokens_per_s == 10
    assert run.errors == {"no_done": 1}


def test_a_target_s_model_may_hold_colons() -> None:
    target = parse_target("a=support-bot:canary:sk-1")
    assert (target.label, target.model, target.api_key) == ("a", "support-bot:canary", "sk-1")
    assert "sk-1" not in repr(target)
    with pytest.raises(typer.BadParameter):
        parse_target("support-bot")


def test_the_demo_s_file_gives_base_and_mixed_targets() -> None:
    tenant = {"api_key": "k", "models": ["support-bot", BASE]}
    base, mixed = demo_targets({"tenants": {"acme": tenant, "globex": tenant}})
    assert {t.model for t in base} == {BASE}
    assert [t.label for t in mixed] == [
        "acme/support-bot",
        f"acme/{BASE}",
        "globex/support-bot",
        f"globex/{BASE}",
    ]


def test_the_demo_suite_writes_figures_and_no_key(server_url: str, tmp_path: Path) -> None:
    tenant = {"api_key": "key", "models": ["support-bot", BASE]}
    (tmp_path / "demo.json").write_text(
        json.dumps({"base_url": server_url, "tenants": {"acme": tenant}})
    )
    main(suite="demo", data_dir=tmp_path, streams=2, requests=6, results=tmp_path / "results")
    (path,) = (tmp_path / "results").iterdir()
    report = json.loads(path.read_text())
    assert [run["name"] for run in report["runs"]] == ["base only", "mixed adapters"]
    assert all(run["errors"] == {} for run in report["runs"])
    assert all(run["output_tokens"] == 6 * NUM_TOKENS for run in report["runs"])
    assert "api_key" not in path.read_text()
