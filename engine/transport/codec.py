"""Messages as bytes: one version byte, then msgpack of a struct of `engine.messages`.

Knows nothing of Redis. Invariant: bytes that do not decode to exactly one known struct of this
version raise MessageDecodeError and nothing else, whoever wrote them.
"""

from __future__ import annotations

from typing import TypeVar

import msgspec

from engine.messages import (
    ControlMessage,
    EngineRequest,
    OutputBatch,
    TokenOutput,
    UsageRecord,
)
from engine.transport.errors import MessageDecodeError

WIRE_VERSION = b"\x01"  # lua/prelude.lua writes control messages and must agree

T = TypeVar("T")

_encoder = msgspec.msgpack.Encoder()
_request_decoder = msgspec.msgpack.Decoder(EngineRequest)
_batch_decoder = msgspec.msgpack.Decoder(OutputBatch)
_usage_decoder = msgspec.msgpack.Decoder(UsageRecord)
_control_decoder: msgspec.msgpack.Decoder[ControlMessage] = msgspec.msgpack.Decoder(ControlMessage)


def encode(message: EngineRequest | OutputBatch | UsageRecord | ControlMessage) -> bytes:
    return WIRE_VERSION + _encoder.encode(message)


def encode_part(output: TokenOutput) -> bytes:
    """One output of a batch that lua/publish.lua puts together."""
    return _encoder.encode(output)


def decode_request(data: bytes) -> EngineRequest:
    return _decode(_request_decoder, data)


def decode_batch(data: bytes) -> OutputBatch:
    return _decode(_batch_decoder, data)


def decode_usage(data: bytes) -> UsageRecord:
    return _decode(_usage_decoder, data)


def decode_control(data: bytes) -> ControlMessage:
    return _decode(_control_decoder, data)


def _decode(decoder: msgspec.msgpack.Decoder[T], data: bytes) -> T:
    if data[:1] != WIRE_VERSION:
        raise MessageDecodeError(f"version byte {data[:1].hex() or 'missing'}")
    try:
        return decoder.decode(memoryview(data)[1:])
    except msgspec.MsgspecError as error:
        raise MessageDecodeError(str(error)) from error
