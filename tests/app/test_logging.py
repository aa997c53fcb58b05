"""Every process logs a request under the id that its client knows, and nothing secret."""

from __future__ import annotations

import json

import pytest
import structlog

from app.api_keys.secret import new_secret
from app.ids import hex_of, id_of_hex, made_at, new_id
from engine.event_log import WITHHELD, configure_logging, name_request, request_id_of, withhold


@pytest.mark.parametrize(
    "digits", ["0" * 32, f"{2**128 - 1:032x}", "01a22b51da8d0d5aacbf2b4fb2621b8e"]
)
def test_a_sequence_is_named_by_its_request_as_the_api_names_it(digits: str) -> None:
    assert request_id_of(digits) == id_of_hex("req", digits)
    event = name_request(None, "info", {"request_id": f"{digits}-3"})
    assert event == {"request_id": id_of_hex("req", digits), "sequence_id": f"{digits}-3"}
    assert hex_of(event["request_id"]) == digits


def test_what_is_no_sequence_keeps_its_name() -> None:
    for given in ("req_01", "x", hex_of(new_id("req"))[:-1], 7):
        assert name_request(None, "info", {"request_id": given}) == {"request_id": given}


def test_prompts_tokens_and_keys_are_withheld_wherever_they_come_from() -> None:
    key = new_secret()
    event = withhold(
        None,
        "info",
        {
            "event": "failed",
            "prompt": "the canary sings",
            "token_ids": [1, 2],
            "detail": f"key {key} at redis://:hush@host:6379/0, Authorization: Bearer abcdef0123",
            "num": 3,
        },
    )
    assert event["prompt"] == event["token_ids"] == WITHHELD and event["num"] == 3
    text = str(event)
    for secret in ("canary", key, "hush", "abcdef0123"):
        assert secret not in text
    assert "host:6379" in text  # where it happened is no secret


def test_events_of_a_process_are_json_lines_with_its_name(
    capsys: pytest.CaptureFixture[str],
) -> None:
    before = structlog.get_config()
    try:
        configure_logging("engine", engine_id="e-0")
        digits = hex_of(new_id("req"))
        structlog.get_logger().info("row_failed", request_id=f"{digits}-0", text="secret")
    finally:
        structlog.configure(**before)
    (line,) = capsys.readouterr().err.splitlines()
    event = json.loads(line)
    assert (event["process"], event["engine_id"], event["level"]) == ("engine", "e-0", "info")
    assert event["request_id"] == id_of_hex("req", digits) and event["text"] == WITHHELD


def test_an_id_says_when_it_was_made() -> None:
    digits = hex_of("req_01kb7c2v3n8q4r5s6t7v8w9x0y")
    assert made_at(digits) == int(digits[:12], 16) / 1000
