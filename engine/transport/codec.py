"""Messages as bytes: a version byte, a MAC, then msgpack of a struct of `engine.messages`.

Knows nothing of Redis. Invariants: no byte of a message is decoded before its MAC was found right,
so whoever can write into Redis, and no more, can put no word into anybody's mouth; bytes that are
not exactly one known struct of this version raise MessageDecodeError and nothing else, whoever
wrote them.

The MAC is HMAC-SHA256 (RFC 2104, cut to its first 16 bytes) over version, kind and struct, so a
message of one kind is none of another. Scripts know no secret: what they pass on to an engine comes
sealed from whoever calls them (docs/decisions/0008-message-authentication.md).
"""

from __future__ import annotations

import hmac
from collections.abc import Callable
from typing import TypeVar, get_args

import msgspec

from engine.messages import (
    AdapterAck,
    AdapterReport,
    ControlMessage,
    EngineRequest,
    OutputBatch,
    TokenOutput,
    UsageRecord,
)
from engine.transport.errors import MessageDecodeError
from engine.transport.secret_list import secrets_of

WIRE_VERSION = b"\x02"  # lua/prelude.lua has it for publish.lua and must agree
MAC_BYTES = 16
MIN_SECRET_CHARS = 16
CONTROL = b"c"
KINDS: dict[type, bytes] = {
    EngineRequest: b"r",
    TokenOutput: b"o",
    UsageRecord: b"u",
    AdapterAck: b"a",
    AdapterReport: b"s",
    **dict.fromkeys(get_args(ControlMessage), CONTROL),
}

T = TypeVar("T")
Sealed = EngineRequest | TokenOutput | UsageRecord | ControlMessage | AdapterAck | AdapterReport

_BODY_AT = len(WIRE_VERSION) + MAC_BYTES


class _Envelope(msgspec.Struct, frozen=True, kw_only=True):
    """What lua/publish.lua puts together: sealed outputs, and the engine that it heard."""

    engine_id: str
    outputs: list[bytes]


_encoder = msgspec.msgpack.Encoder()
_request_decoder = msgspec.msgpack.Decoder(EngineRequest)
_output_decoder = msgspec.msgpack.Decoder(TokenOutput)
_usage_decoder = msgspec.msgpack.Decoder(UsageRecord)
_ack_decoder = msgspec.msgpack.Decoder(AdapterAck)
_report_decoder = msgspec.msgpack.Decoder(AdapterReport)
_envelope_decoder = msgspec.msgpack.Decoder(_Envelope)
_control_decoder: msgspec.msgpack.Decoder[ControlMessage] = msgspec.msgpack.Decoder(ControlMessage)


class Codec:
    """Of one process. All processes of an installation share the secret."""

    def __init__(self, secrets: str = "") -> None:
        """secrets: one, or several with commas between: the first seals, any of them opens.

        With an empty one a MAC tells damage, and no forgery. Raises ValueError for a short one.
        """
        self._keys = [secret.encode() for secret in secrets_of(secrets)]
        if secrets and min(map(len, self._keys)) < MIN_SECRET_CHARS:
            raise ValueError(f"a queue secret has at least {MIN_SECRET_CHARS} characters")

    def encode(self, message: Sealed) -> bytes:
        """The whole message, sealed."""
        kind, body = KINDS[type(message)], _encoder.encode(message)
        return WIRE_VERSION + _mac(self._keys[0], kind, body) + body

    def encode_part(self, output: TokenOutput) -> bytes:
        """One output of a batch that lua/publish.lua puts together."""
        return _encoder.encode(self.encode(output))

    def decode_request(self, data: bytes) -> EngineRequest:
        return self._open(_request_decoder, KINDS[EngineRequest], data)

    def decode_usage(self, data: bytes) -> UsageRecord:
        return self._open(_usage_decoder, KINDS[UsageRecord], data)

    def decode_ack(self, data: bytes) -> AdapterAck:
        return self._open(_ack_decoder, KINDS[AdapterAck], data)

    def decode_report(self, data: bytes) -> AdapterReport:
        return self._open(_report_decoder, KINDS[AdapterReport], data)

    def decode_control(self, data: bytes) -> ControlMessage:
        return self._open(_control_decoder, CONTROL, data)

    def decode_batch(self, data: bytes) -> tuple[OutputBatch, list[MessageDecodeError]]:
        """The outputs that are whole, and what is wrong with each of the others."""
        envelope = _decode(_envelope_decoder.decode, data, body_at=len(WIRE_VERSION))
        outputs, errors = [], []
        for part in envelope.outputs:
            try:
                outputs.append(self._open(_output_decoder, KINDS[TokenOutput], part))
            except MessageDecodeError as error:
                errors.append(error)
        return OutputBatch(engine_id=envelope.engine_id, outputs=outputs), errors

    def _open(self, decoder: msgspec.msgpack.Decoder[T], kind: bytes, data: bytes) -> T:
        mac, body = data[len(WIRE_VERSION) : _BODY_AT], data[_BODY_AT:]
        if not any(hmac.compare_digest(mac, _mac(key, kind, body)) for key in self._keys):
            raise MessageDecodeError("its MAC is wrong: damaged, forged, or of another secret")
        return _decode(decoder.decode, data, body_at=_BODY_AT)


def _mac(key: bytes, kind: bytes, body: bytes) -> bytes:
    return hmac.digest(key, WIRE_VERSION + kind + body, "sha256")[:MAC_BYTES]


def _decode(decode: Callable[[memoryview], T], data: bytes, *, body_at: int) -> T:
    if data[:1] != WIRE_VERSION:
        raise MessageDecodeError(f"version byte {data[:1].hex() or 'missing'}")
    try:
        return decode(memoryview(data)[body_at:])
    except (msgspec.MsgspecError, RecursionError) as error:
        raise MessageDecodeError(str(error)) from error
