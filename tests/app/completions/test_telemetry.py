"""An answer is measured under its tenant, and takes its caller's trace along to the engine."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from dataclasses import replace

import httpx
import pytest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from app.api import create_app
from app.context import AppContext
from tests.builders.canaries import PROMPT
from tests.builders.operator import Operator, Tenant
from tests.builders.stub_engine import StubEngine
from tests.fixtures.canaries import heard

BODY = {
    "model": "support-bot",
    "messages": [{"role": "user", "content": PROMPT}],
    "n": 2,
}
TRACE, CALLER = "ab" * 16, "cd" * 8


@pytest.fixture
def exporter() -> Iterator[InMemorySpanExporter]:
    made = InMemorySpanExporter()
    yield made
    for span in made.get_finished_spans():
        heard("a span", span.to_json())


@pytest.fixture
async def traced(
    context: AppContext, exporter: InMemorySpanExporter
) -> AsyncIterator[httpx.AsyncClient]:
    """The tenants' port of a process that traces."""
    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    app = create_app(replace(context, tracer=provider.get_tracer("t")))
    transport = httpx.ASGITransport(app)
    async with httpx.AsyncClient(transport=transport, base_url="http://tenfold.test") as client:
        yield client


def value(metrics: str, name: str, *labels: str) -> float | None:
    """Of the one series of this name that has these labels."""
    for line in metrics.splitlines():
        series, _, number = line.rpartition(" ")
        if series.partition("{")[0] == name and all(label in series for label in labels):
            return float(number)
    return None


async def test_an_answer_is_measured_under_its_tenants_id(
    api: httpx.AsyncClient, admin: httpx.AsyncClient, acme: Tenant, engine: StubEngine
) -> None:
    answer = (await api.post("/v1/chat/completions", json=BODY, headers=acme.headers)).json()
    streamed = await api.post(
        "/v1/chat/completions", json={**BODY, "stream": True, "n": 1}, headers=acme.headers
    )
    assert streamed.status_code == 200
    metrics = (await admin.get("/metrics")).text
    tenant = f'tenant="{acme.id}"'
    assert value(metrics, "tenfold_requests_received_total", tenant) == 2
    assert value(metrics, "tenfold_request_success_total", tenant, "stop") == 3
    assert value(metrics, "tenfold_time_to_first_token_seconds_count", tenant) == 2
    assert value(metrics, "tenfold_e2e_request_latency_seconds_count", tenant) == 2
    # The stream's one choice says what each of the other answer's two does.
    num_tokens = answer["usage"]["completion_tokens"] / 2 * 3
    assert value(metrics, "tenfold_generation_tokens_total", tenant) == num_tokens
    num_prompt = 2 * answer["usage"]["prompt_tokens"]
    assert value(metrics, "tenfold_prompt_tokens_total", tenant) == num_prompt
    assert "canary" not in metrics and "support-bot" not in metrics


async def test_a_refusal_is_counted_by_its_code(
    api: httpx.AsyncClient, admin: httpx.AsyncClient, operator: Operator, engine: StubEngine
) -> None:
    none = await operator.new_tenant("none", limits={"requests_per_minute": 0})
    body = {"model": "tenfold-test/Tiny-Llama", "messages": BODY["messages"]}
    response = await api.post("/v1/chat/completions", json=body, headers=none.headers)
    assert response.status_code == 429
    code = response.json()["error"]["code"]
    metrics = (await admin.get("/metrics")).text
    rejected = "tenfold_requests_rejected_total"
    assert value(metrics, rejected, f'tenant="{none.id}"', f'reason="{code}"') == 1
    assert value(metrics, "tenfold_http_errors_total", f'code="{code}"') == 1


async def test_a_callers_trace_goes_on_in_the_engine_and_holds_no_text(
    traced: httpx.AsyncClient, exporter: InMemorySpanExporter, acme: Tenant, engine: StubEngine
) -> None:
    headers = {**acme.headers, "traceparent": f"00-{TRACE}-{CALLER}-01"}
    response = await traced.post("/v1/chat/completions", json=BODY, headers=headers)
    await traced.get("/livez")
    (span,) = exporter.get_finished_spans()
    assert span.name == "POST /chat/completions" and f"{span.parent.span_id:016x}" == CALLER
    taken = {request.traceparent for request in engine.requests}
    assert taken == {f"00-{TRACE}-{span.context.span_id:016x}-01"}
    usage = response.json()["usage"]
    assert span.attributes["gen_ai.usage.output_tokens"] == usage["completion_tokens"]
    assert span.attributes["gen_ai.response.finish_reasons"] == ("stop", "stop")
    assert span.attributes["tenfold.request_id"] == response.headers["x-request-id"]
    assert "canary" not in span.to_json() and acme.secret not in span.to_json()


async def test_without_tracing_a_request_takes_no_trace_along(
    api: httpx.AsyncClient, acme: Tenant, engine: StubEngine
) -> None:
    headers = {**acme.headers, "traceparent": f"00-{TRACE}-{CALLER}-01"}
    await api.post("/v1/chat/completions", json=BODY, headers=headers)
    assert {request.traceparent for request in engine.requests} == {None}
