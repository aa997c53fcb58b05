"""One trace from the client's span through the queue to the engine, and nothing secret in it."""

from __future__ import annotations

import json
import secrets

from tests.builders.tiny_base import MODEL_ID
from tests.builders.waiting import wait_until
from tests.chart.observability.installation import PROMPT, Installation
from tests.chart.patience import START_S

ENGINE_SPANS = {"queue.wait", "engine.generate", "engine.prefill", "engine.decode"}


def ask(installation: Installation, *, is_sampled: bool = True) -> tuple[str, str, dict[str, int]]:
    """(trace, client's span, usage) of a request that belongs to a trace."""
    trace_id, span_id = secrets.token_hex(16), secrets.token_hex(8)
    traceparent = f"00-{trace_id}-{span_id}-0{int(is_sampled)}"
    response = installation.chat("acme", "bot", {"traceparent": traceparent})
    assert response.status_code == 200
    return trace_id, span_id, response.json()["usage"]


def test_a_request_is_one_trace_from_http_to_the_engines_tokens(
    installation: Installation,
) -> None:
    trace_id, client_span, usage = ask(installation)
    collector = installation.collector
    wait_until(lambda: len(collector.of_trace(trace_id)) == 5, timeout_s=START_S)
    spans = {span["name"]: span for span in collector.of_trace(trace_id)}
    assert spans.keys() == {"POST /chat/completions", *ENGINE_SPANS}

    http, engine = spans["POST /chat/completions"], spans["engine.generate"]
    assert http["parent_id"] == client_span and http["service"] == "tenfold-api"
    assert engine["parent_id"] == spans["queue.wait"]["parent_id"] == http["span_id"]
    for part in ("engine.prefill", "engine.decode"):
        assert spans[part]["parent_id"] == engine["span_id"]
        assert spans[part]["service"] == "tenfold-engine"

    for attributes in (http["attributes"], engine["attributes"]):
        assert attributes["gen_ai.provider.name"] == "tenfold"
        assert attributes["gen_ai.usage.input_tokens"] == usage["prompt_tokens"]
        assert attributes["gen_ai.usage.output_tokens"] == usage["completion_tokens"]
        assert len(attributes["gen_ai.response.finish_reasons"]) == 1
    assert http["attributes"]["gen_ai.request.model"] == "bot"
    assert engine["attributes"]["gen_ai.request.model"] == MODEL_ID
    assert http["attributes"]["http.response.status_code"] == 200
    assert engine["attributes"]["tenfold.adapter_digest"].startswith("sha256:")

    order = [spans["queue.wait"]["end_ns"], spans["engine.prefill"]["end_ns"], engine["end_ns"]]
    assert order == sorted(order) and http["start_ns"] <= order[0]


def test_a_request_that_its_caller_does_not_sample_makes_no_span(
    installation: Installation,
) -> None:
    trace_id, *_ = ask(installation, is_sampled=False)
    sampled, *_ = ask(installation)
    wait_until(lambda: len(installation.collector.of_trace(sampled)) == 5, timeout_s=START_S)
    assert installation.collector.of_trace(trace_id) == []


def test_probes_are_not_traced_and_no_span_holds_a_prompt_or_a_key(
    installation: Installation,
) -> None:
    ask(installation)
    wait_until(lambda: len(installation.collector.spans) > 0, timeout_s=START_S)
    exported = json.dumps(installation.collector.spans)
    for text in (PROMPT, "canary", *installation.keys.values(), "livez", "/metrics"):
        assert text not in exported
