"""Messages survive the wire; anything else is refused by name."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.messages import Abort, AdapterRef, FinishReason, OutputBatch, TokenOutput, Wake
from engine.transport import codec
from engine.transport.errors import MessageDecodeError
from tests.builders.requests import make_request

ADAPTER = AdapterRef(tenant_id="ten_a", digest="sha256:" + "0" * 64, locator="ten_a/" + "0" * 64)


def test_a_request_comes_back_as_it_was() -> None:
    request = make_request(adapter=ADAPTER, delivered=[7, 8], stop_token_ids=(2,))
    assert codec.decode_request(codec.encode(request)) == request


def test_a_batch_comes_back_as_it_was() -> None:
    output = TokenOutput(
        request_id="req_1",
        epoch=1,
        index=0,
        token_ids=[1, 2],
        num_prompt_tokens=3,
        num_generated_tokens=2,
        finish_reason=FinishReason.LENGTH,
    )
    batch = OutputBatch(engine_id="engine", outputs=[output])
    assert codec.decode_batch(codec.encode(batch)) == batch


@pytest.mark.parametrize("message", [Abort(request_id="req_1", epoch=3), Wake()])
def test_a_control_message_comes_back_as_it_was(message: Abort | Wake) -> None:
    assert codec.decode_control(codec.encode(message)) == message


def test_another_version_is_refused() -> None:
    data = codec.encode(make_request())
    with pytest.raises(MessageDecodeError, match="version"):
        codec.decode_request(b"\x02" + data[1:])


@given(st.binary(max_size=200))
def test_no_bytes_raise_anything_but_a_decode_error(data: bytes) -> None:
    for decode in (codec.decode_request, codec.decode_batch, codec.decode_control):
        for candidate in (data, codec.WIRE_VERSION + data):
            try:
                decode(candidate)
            except MessageDecodeError:
                continue


@given(st.data())
def test_a_damaged_message_raises_nothing_but_a_decode_error(data: st.DataObject) -> None:
    message = bytearray(codec.encode(make_request(request_id="req_1", adapter=ADAPTER)))
    place = data.draw(st.integers(0, len(message) - 1))
    message[place] = data.draw(st.integers(0, 255))
    try:
        codec.decode_request(bytes(message))
    except MessageDecodeError:
        return
