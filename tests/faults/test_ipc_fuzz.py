"""A hundred thousand damaged frames: each is refused with the one error that readers expect."""

from __future__ import annotations

import random
from collections.abc import Callable

import msgspec
import pytest

from engine.messages import Abort, FinishReason, TokenOutput
from engine.transport.codec import WIRE_VERSION, Codec, Sealed
from engine.transport.errors import MessageDecodeError
from tests.builders.damage import damaged
from tests.builders.queue_secret import QUEUE_SECRET
from tests.builders.requests import make_request
from tests.builders.usage import make_record

NUM_FRAMES = 20_000
"""Of each of five kinds."""
CODEC = Codec(QUEUE_SECRET)
REQUEST = make_request(request_id="req_1", prompt=list(range(40)), delivered=[7, 8])
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


def envelope(*parts: bytes) -> bytes:
    return WIRE_VERSION + msgspec.msgpack.encode({"engine_id": "engine", "outputs": list(parts)})


@pytest.mark.parametrize(
    ("sound", "decode"),
    [
        (CODEC.encode(REQUEST), CODEC.decode_request),
        (CODEC.encode(RECORD), CODEC.decode_usage),
        (CODEC.encode(Abort(request_id="req_1", epoch=3)), CODEC.decode_control),
    ],
)
def test_no_damaged_frame_passes_its_mac(sound: bytes, decode: Callable[[bytes], Sealed]) -> None:
    decode(sound)
    rng = random.Random(1)
    for _ in range(NUM_FRAMES):
        with pytest.raises(MessageDecodeError):
            decode(damaged(sound, rng))


def test_no_damaged_batch_gives_an_output_that_no_engine_said() -> None:
    sound, rng = envelope(CODEC.encode(OUTPUT), CODEC.encode(OUTPUT)), random.Random(2)
    num_taken = 0
    for _ in range(NUM_FRAMES):
        try:
            batch, _ = CODEC.decode_batch(damaged(sound, rng))
        except MessageDecodeError:
            continue
        assert all(output == OUTPUT for output in batch.outputs)
        num_taken += len(batch.outputs)
    assert num_taken > 1000, "one output of a batch is whole where the other is damaged"


def test_who_has_the_secret_and_speaks_nonsense_crashes_nobody(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Damage before the seal: another version's struct, or a bug of ours."""
    monkeypatch.setattr("engine.transport.codec._mac", lambda key, kind, body: bytes(16))
    sound, rng = CODEC.encode(REQUEST), random.Random(4)
    head, body = sound[:17], sound[17:]
    for _ in range(NUM_FRAMES):
        try:
            CODEC.decode_request(head + damaged(body, rng))
        except MessageDecodeError:
            continue
