"""Messages survive the wire; anything else is refused by name, before it is decoded."""

from __future__ import annotations

import random
from collections.abc import Callable

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.messages import Abort, AdapterRef, FinishReason, OutputBatch, TokenOutput, Wake
from engine.transport.codec import (
    MAC_BYTES,
    WIRE_VERSION,
    Codec,
    Sealed,
)
from engine.transport.errors import MessageDecodeError
from tests.builders.damage import damaged
from tests.builders.queue_secret import QUEUE_SECRET
from tests.builders.requests import make_request
from tests.builders.usage import make_record

ADAPTER = AdapterRef(tenant_id="ten_a", digest="sha256:" + "0" * 64, locator="ten_a/" + "0" * 64)
REQUEST = make_request(request_id="req_1", adapter=ADAPTER, delivered=[7, 8], stop_token_ids=(2,))
OUTPUT = TokenOutput(
    request_id="req_1",
    epoch=1,
    index=0,
    token_ids=[1, 2],
    num_prompt_tokens=3,
    num_generated_tokens=2,
    finish_reason=FinishReason.LENGTH,
)
RECORD = make_record()
OTHER_SECRET = "secret-of-somebody-else"
CODEC = Codec(QUEUE_SECRET)


def envelope(*parts: bytes) -> bytes:
    """As lua/publish.lua writes one."""
    return WIRE_VERSION + msgspec.msgpack.encode({"engine_id": "engine", "outputs": list(parts)})


def test_what_is_sealed_comes_back_as_it_was() -> None:
    assert CODEC.decode_request(CODEC.encode(REQUEST)) == REQUEST
    assert CODEC.decode_usage(CODEC.encode(RECORD)) == RECORD


def test_a_batch_comes_back_as_it_was() -> None:
    expected = OutputBatch(engine_id="engine", outputs=[OUTPUT, OUTPUT])
    sealed = CODEC.encode(OUTPUT)
    assert CODEC.decode_batch(envelope(sealed, sealed)) == (expected, [])
    assert msgspec.msgpack.decode(CODEC.encode_part(OUTPUT)) == sealed


@pytest.mark.parametrize("message", [Abort(request_id="req_1", epoch=3), Wake()])
def test_a_control_message_comes_back_as_it_was(message: Abort | Wake) -> None:
    assert CODEC.decode_control(CODEC.encode(message)) == message


def test_another_version_is_refused() -> None:
    for data in (CODEC.encode(REQUEST), CODEC.encode(Wake())):
        for decode in (CODEC.decode_request, CODEC.decode_batch, CODEC.decode_control):
            with pytest.raises(MessageDecodeError):
                decode(b"\x01" + data[1:])


def test_what_another_secret_has_sealed_is_not_decoded() -> None:
    forger = Codec(OTHER_SECRET)
    with pytest.raises(MessageDecodeError, match="MAC"):
        CODEC.decode_request(forger.encode(REQUEST))
    with pytest.raises(MessageDecodeError, match="MAC"):
        CODEC.decode_control(forger.encode(Wake()))
    batch, errors = CODEC.decode_batch(envelope(CODEC.encode(OUTPUT), forger.encode(OUTPUT)))
    assert (batch.outputs, len(errors)) == ([OUTPUT], 1)


def test_a_message_of_one_kind_is_none_of_another() -> None:
    """Were it only the schema that tells them apart, a struct with the right fields would pass."""
    body = msgspec.msgpack.encode(RECORD)
    sealed = CODEC.encode(RECORD)
    assert sealed.endswith(body)
    with pytest.raises(MessageDecodeError, match="MAC"):
        CODEC.decode_request(sealed)
    [error] = CODEC.decode_batch(envelope(sealed))[1]
    assert "MAC" in str(error)


def test_a_secret_is_changed_without_a_moment_in_which_somebody_is_not_understood() -> None:
    old, new = QUEUE_SECRET, OTHER_SECRET
    for before, after in (
        (old, f"{old},{new}"),
        (f"{old},{new}", f"{new},{old}"),
        (f"{new},{old}", new),
    ):
        for said, heard in ((before, after), (after, before)):
            assert Codec(heard).decode_request(Codec(said).encode(REQUEST)) == REQUEST
    with pytest.raises(MessageDecodeError):  # the control: this step is one too many
        Codec(old).decode_request(Codec(new).encode(REQUEST))


def test_a_short_secret_is_refused() -> None:
    for secrets in ("short", f"{QUEUE_SECRET},short"):
        with pytest.raises(ValueError, match="16 characters"):
            Codec(secrets)


@given(st.binary(max_size=200))
def test_no_bytes_raise_anything_but_a_decode_error(data: bytes) -> None:
    for decode in (
        CODEC.decode_request,
        CODEC.decode_usage,
        CODEC.decode_batch,
        CODEC.decode_control,
    ):
        for candidate in (data, WIRE_VERSION + data):
            try:
                decode(candidate)
            except MessageDecodeError:
                continue


@pytest.mark.parametrize(
    ("message", "decode"),
    [
        (REQUEST, CODEC.decode_request),
        (RECORD, CODEC.decode_usage),
        (Abort(request_id="req_1", epoch=3), CODEC.decode_control),
    ],
)
def test_no_damaged_message_is_taken(message: Sealed, decode: Callable[[bytes], Sealed]) -> None:
    sealed, rng = CODEC.encode(message), random.Random(1)
    for frame in (damaged(sealed, rng) for _ in range(2000)):
        with pytest.raises(MessageDecodeError):
            decode(frame)


def test_control_without_the_mac_a_damaged_message_would_be_taken() -> None:
    body, rng = msgspec.msgpack.encode(REQUEST), random.Random(1)
    num_taken = 0
    for frame in (damaged(body, rng) for _ in range(2000)):
        try:
            msgspec.msgpack.decode(frame, type=type(REQUEST))
        except (msgspec.MsgspecError, RecursionError):
            continue
        num_taken += 1
    assert num_taken > 100


def test_depth_and_lengths_that_are_lies_are_decode_errors() -> None:
    head = WIRE_VERSION + b"\x82\xa9engine_id\xa1a"
    for tail in (b"\xa1x" + b"\x91" * 100_000, b"\xa7outputs\xdd\xff\xff\xff\xff"):
        with pytest.raises(MessageDecodeError):
            CODEC.decode_batch(head + tail)


def test_a_mac_is_as_long_as_it_says() -> None:
    assert len(CODEC.encode(RECORD)) == 1 + MAC_BYTES + len(msgspec.msgpack.encode(RECORD))
