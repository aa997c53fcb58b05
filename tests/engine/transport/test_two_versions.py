"""Two versions of the code on one queue: what each may say, and what each takes from the other.

The rules are docs/decisions/0019-two-versions-on-one-queue.md. Processes of two versions that
really talk: tests/chart/test_upgrade.py.
"""

from __future__ import annotations

import hmac
from collections.abc import Callable, Iterator
from typing import Any

import msgspec
import pytest

from engine.messages import (
    Abort,
    AdapterAck,
    AdapterCommand,
    AdapterRef,
    AdapterReport,
    EngineError,
    Evidence,
    FinishReason,
    Lever,
    ModuleFigure,
    Outcome,
    ResidencyState,
    TokenOutput,
    Wake,
)
from engine.transport.codec import KINDS, MAC_BYTES, WIRE_VERSION, Codec, Sealed
from engine.transport.errors import MessageDecodeError
from tests.builders.queue_secret import QUEUE_SECRET
from tests.builders.recorded_messages import RECORDED, RECORDED_FIELDS, RECORDING_SECRET
from tests.builders.requests import make_request
from tests.builders.usage import make_record

CODEC = Codec(QUEUE_SECRET)
ADAPTER = AdapterRef(tenant_id="ten_a", digest="sha256:" + "0" * 64, locator="ten_a/" + "0" * 64)
ERROR = EngineError(code="adapter_missing", message="It is not there.")
EVIDENCE = Evidence(logits=(0.5,), modules=(ModuleFigure(module="q", error=0.0, effect=0.1),))
OUTPUT = TokenOutput(
    request_id="req_1",
    epoch=1,
    index=0,
    token_ids=[1, 2],
    num_prompt_tokens=3,
    num_generated_tokens=2,
    finish_reason=FinishReason.LENGTH,
    error=ERROR,
    evidence=EVIDENCE,
)
MESSAGES: dict[str, Sealed] = {
    "request": make_request(request_id="req_1", adapter=ADAPTER, delivered=[7]),
    "output": OUTPUT,
    "usage": make_record(),
    "abort": Abort(request_id="req_1", epoch=3),
    "wake": Wake(),
    "command": AdapterCommand(command_id="c", lever=Lever.PIN, adapter=ADAPTER),
    "ack": AdapterAck(command_id="c", engine_id="e", outcome=Outcome.FAILED, error=ERROR),
    "report": AdapterReport(
        engine_id="e",
        tenant_id="ten_a",
        digest=ADAPTER.digest,
        state=ResidencyState.READY,
        since_s=1.0,
        error=ERROR,
    ),
}
NAMES = sorted(MESSAGES)


def sealed(kind: bytes, body: dict[str, Any], secret: str = QUEUE_SECRET) -> bytes:
    """As decision 8 says, and by no code of ours."""
    data = msgspec.msgpack.encode(body)
    mac = hmac.digest(secret.encode(), WIRE_VERSION + kind + data, "sha256")[:MAC_BYTES]
    return WIRE_VERSION + mac + data


def decoded(name: str, data: bytes, codec: Codec = CODEC) -> Any:
    decoders: dict[str, Callable[[bytes], Any]] = {
        "request": codec.decode_request,
        "usage": codec.decode_usage,
        "ack": codec.decode_ack,
        "report": codec.decode_report,
    }
    if name == "output":
        batch, errors = codec.decode_batch(envelope(data))
        if errors:
            raise errors[0]
        return batch.outputs[0]
    return decoders.get(name, codec.decode_control)(data)


def envelope(*parts: bytes, **more: Any) -> bytes:
    """As lua/publish.lua writes one."""
    said = {"engine_id": "engine", "outputs": list(parts), **more}
    return WIRE_VERSION + msgspec.msgpack.encode(said)


def body_of(message: Sealed) -> dict[str, Any]:
    found: dict[str, Any] = msgspec.msgpack.decode(msgspec.msgpack.encode(message))
    return found


def with_more(body: Any) -> Any:
    """With a field that nobody knows yet, in each of its parts."""
    if isinstance(body, list):
        return [with_more(each) for each in body]
    if not isinstance(body, dict):
        return body
    return {name: with_more(each) for name, each in body.items()} | {"of_the_future": {"a": [1]}}


@pytest.mark.parametrize("name", NAMES)
def test_what_a_newer_sender_says_besides_is_passed_over(name: str) -> None:
    message = MESSAGES[name]
    assert decoded(name, sealed(KINDS[type(message)], with_more(body_of(message)))) == message


def test_an_envelope_may_say_more() -> None:
    part = CODEC.encode(OUTPUT)
    batch, errors = CODEC.decode_batch(envelope(part, of_the_future=1))
    assert (batch.outputs, errors) == ([OUTPUT], [])


def fields_of(message: Sealed) -> Iterator[tuple[str, bool]]:
    """Names, and whether they must be there."""
    for field in msgspec.structs.fields(message):
        yield field.encode_name, field.required


@pytest.mark.parametrize("name", NAMES)
def test_what_an_older_sender_does_not_say_is_as_by_default(name: str) -> None:
    message = MESSAGES[name]
    body = body_of(message)
    for field, is_required in fields_of(message):
        if not is_required:
            del body[field]
    found = decoded(name, sealed(KINDS[type(message)], body))
    required = {field: getattr(message, field) for field, must in fields_of(message) if must}
    assert found == type(message)(**required)


def says(found: Any, said: Any) -> bool:
    """Whether all of it is in what was found, which may have more fields in each of its parts."""
    if not isinstance(said, dict):
        return bool(found == said)
    return all(name in found and says(found[name], value) for name, value in said.items())


@pytest.mark.parametrize("name", sorted(RECORDED))
def test_what_older_code_said_is_understood(name: str) -> None:
    """Bytes as they were written by the code of before, field by field."""
    codec = Codec(RECORDING_SECRET)
    found = body_of(decoded(name, bytes.fromhex(RECORDED[name]), codec))
    assert says(found, RECORDED_FIELDS[name])
    assert not says(found, RECORDED_FIELDS[name] | {"of_the_future": 1}), "the control"


@pytest.mark.parametrize("name", sorted(RECORDED))
def test_older_code_is_told_all_that_it_knows(name: str) -> None:
    """It misses no field that it may need, and finds each with a value of the kind that it had."""
    said = body_of(MESSAGES[name])
    for field, value in RECORDED_FIELDS[name].items():
        assert field in said
        if value is not None and said[field] is not None:
            assert isinstance(said[field], type(value)), field


@pytest.mark.parametrize("name", NAMES)
def test_control_a_message_without_a_field_that_must_be_there_is_refused(name: str) -> None:
    """A new field must have a default: this is what older code's messages would be otherwise."""
    message = MESSAGES[name]
    for field, is_required in fields_of(message):
        if is_required:
            body = body_of(message)
            del body[field]
            with pytest.raises(MessageDecodeError, match=field):
                decoded(name, sealed(KINDS[type(message)], body))


@pytest.mark.parametrize(
    ("name", "field"),
    [
        ("output", "finish_reason"),
        ("request", "service_tier"),
        ("usage", "author"),
        ("command", "lever"),
        ("abort", "type"),
    ],
)
def test_control_a_value_that_is_not_known_yet_is_refused(name: str, field: str) -> None:
    """Not passed over: it would be taken for something that it is not. It is sent by the release
    after the one that reads it."""
    message = MESSAGES[name]
    with pytest.raises(MessageDecodeError):
        decoded(name, sealed(KINDS[type(message)], body_of(message) | {field: "of_the_future"}))
