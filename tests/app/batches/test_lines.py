"""A batch's input is read whole, and whatever is wrong with it is told by line."""

from __future__ import annotations

import json
from typing import Any

import pytest

from app.batches import lines
from app.batches.lines import LineError, Validation, read_line
from app.batches.schemas import CHAT

LINE = {"custom_id": "a", "method": "POST", "url": CHAT, "body": {"model": "m"}}


def raw(**changes: Any) -> bytes:
    return json.dumps({**LINE, **changes}).encode()


def without(name: str) -> bytes:
    return json.dumps({key: value for key, value in LINE.items() if key != name}).encode()


@pytest.mark.parametrize(
    ("sent", "code", "param"),
    [
        (b"{", "invalid_json_line", None),
        (b"[1]", "invalid_json_line", None),
        (b"[" * 100_000, "invalid_json_line", None),
        (b"\xff\xfe\x00", "invalid_json_line", None),
        (without("custom_id"), "missing_required_parameter", "custom_id"),
        (without("body"), "missing_required_parameter", "body"),
        (raw(custom_id=7), "invalid_value", "custom_id"),
        (raw(custom_id="\ud800"), "invalid_value", "custom_id"),
        (raw(custom_id="x" * 513), "invalid_value", "custom_id"),
        (raw(method="GET"), "invalid_method", "method"),
        (raw(url="/v1/embeddings"), "mismatched_url", "url"),
        (raw(body="x"), "invalid_type", "body"),
        (raw(body={"x": "y" * 2000}), "line_too_long", None),
    ],
)
def test_a_line_that_cannot_be_read_is_refused_by_name(
    sent: bytes, code: str, param: str | None
) -> None:
    with pytest.raises(LineError) as raised:
        read_line(3, sent, CHAT, 200_000 if sent.startswith(b"[[") else 1000)
    shown = raised.value.shown(3)
    assert (shown["code"], shown["line"], shown["param"]) == (code, 3, param)


def test_what_is_in_order_has_no_errors_and_names_its_one_model() -> None:
    validation = Validation(CHAT, 1000)
    for number, name in enumerate("abc", start=1):
        validation.take(number, raw(custom_id=name))
    assert validation.finish() == []
    assert (validation.num_lines, validation.model) == (3, "m")
    validation.take(4, raw(custom_id="d", body={"model": "other"}))
    assert validation.model is None


def test_two_lines_of_one_name_and_no_line_and_too_many_are_errors(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    twice = Validation(CHAT, 1000)
    twice.take(1, raw())
    twice.take(2, raw())
    assert [(e["code"], e["line"]) for e in twice.finish()] == [("duplicate_custom_id", 2)]
    assert Validation(CHAT, 1000).finish()[0]["code"] == "empty_file"
    monkeypatch.setattr(lines, "MAX_LINES", 1)
    assert twice.is_hopeless and twice.finish()[0]["code"] == "too_many_lines"
