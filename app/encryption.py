"""Bodies at rest: each under a data key of its own, and that one wrapped by an envelope key.

AES-256-GCM (NIST SP 800-38D) throughout. What is long is cut into segments, each sealed under its
number and whether it is the last, so that none can be left out, moved or put in place of another
(the STREAM construction: Hoang, Reyhanitabar, Rogaway and Vizár, CRYPTO 2015). Knows nothing of
files, tenants or stores. Invariants: a data key seals one body, or one batch's records; a wrapped
key opens under the name that it was wrapped for, and under no other; of several envelope keys the
first wraps, and any unwraps, so that they can be changed while everything stays readable.
"""

from __future__ import annotations

import secrets

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from engine.transport.secret_list import secrets_of

SEGMENT_BYTES = 64 << 10
TAG_BYTES = 16
MIN_SECRET_CHARS = 32
_KEY_BYTES = 32
_KEY_ID_BYTES = 8
_NONCE_BYTES = 12
_SEALED_SEGMENT_BYTES = SEGMENT_BYTES + TAG_BYTES
_ENVELOPE = b"tenfold envelope key, version 1"


class SealBrokenError(Exception):
    """What was to be opened is damaged or cut short, or no envelope key that is known fits it."""


class DataKey:
    """A key for one body (`seal_segment`) or for the records of one batch (`seal_record`)."""

    def __init__(self, key: bytes) -> None:
        self._aead = AESGCM(key)

    def seal_segment(self, number: int, data: bytes, *, is_last: bool) -> bytes:
        return self._aead.encrypt(_segment_nonce(number, is_last=is_last), data, None)

    def open_segment(self, number: int, sealed: bytes, *, is_last: bool) -> bytes:
        """Raises SealBrokenError."""
        try:
            return self._aead.decrypt(_segment_nonce(number, is_last=is_last), sealed, None)
        except InvalidTag as error:
            raise SealBrokenError(f"segment {number} does not open") from error

    def seal_record(self, name: str, data: bytes) -> bytes:
        """A record may be sealed again with other content, hence a nonce drawn for each."""
        nonce = secrets.token_bytes(_NONCE_BYTES)
        return nonce + self._aead.encrypt(nonce, data, name.encode())

    def open_record(self, name: str, sealed: bytes) -> bytes:
        """Raises SealBrokenError: also for a record of another name."""
        nonce, rest = sealed[:_NONCE_BYTES], sealed[_NONCE_BYTES:]
        if len(rest) < TAG_BYTES:
            raise SealBrokenError(f"the record {name} is cut short")
        try:
            return self._aead.decrypt(nonce, rest, name.encode())
        except InvalidTag as error:
            raise SealBrokenError(f"the record {name} does not open") from error


class EnvelopeKeys:
    """Wraps data keys. A wrapped key: 8 bytes that name the envelope key, a nonce, the sealed."""

    def __init__(self, secrets_text: str) -> None:
        """secrets_text: one secret, or several with commas between; the first one wraps.

        Raises ValueError for one of less than `MIN_SECRET_CHARS` characters.
        """
        texts = secrets_of(secrets_text)
        if min(map(len, texts)) < MIN_SECRET_CHARS:
            raise ValueError(f"an envelope key has at least {MIN_SECRET_CHARS} characters")
        derived = [_derive(each.encode()) for each in texts]
        self._keys = {key[_KEY_BYTES:]: AESGCM(key[:_KEY_BYTES]) for key in derived}
        self._current_id = derived[0][_KEY_BYTES:]

    def new_data_key(self, name: str) -> tuple[DataKey, bytes]:
        """A fresh key, and the same wrapped for whatever is called `name`."""
        key = AESGCM.generate_key(8 * _KEY_BYTES)
        return DataKey(key), self._wrap(name, key)

    def unwrap(self, name: str, wrapped: bytes) -> DataKey:
        """Raises SealBrokenError."""
        return DataKey(self._unwrap(name, wrapped))

    @property
    def current_id(self) -> bytes:
        """What a key that the first envelope key wrapped begins with."""
        return self._current_id

    def rewrap(self, name: str, wrapped: bytes) -> bytes:
        """The same data key under the first envelope key. Raises SealBrokenError."""
        return self._wrap(name, self._unwrap(name, wrapped))

    def _wrap(self, name: str, key: bytes) -> bytes:
        nonce = secrets.token_bytes(_NONCE_BYTES)
        sealed = self._keys[self._current_id].encrypt(nonce, key, name.encode())
        return self._current_id + nonce + sealed

    def _unwrap(self, name: str, wrapped: bytes) -> bytes:
        envelope_key = self._keys.get(wrapped[:_KEY_ID_BYTES])
        if envelope_key is None:
            raise SealBrokenError(f"no envelope key is known that wrapped the key of {name}")
        sealed_at = _KEY_ID_BYTES + _NONCE_BYTES
        try:
            return envelope_key.decrypt(
                wrapped[_KEY_ID_BYTES:sealed_at], wrapped[sealed_at:], name.encode()
            )
        except (InvalidTag, ValueError) as error:
            raise SealBrokenError(f"the wrapped key of {name} does not open") from error


class Sealer:
    """`feed` a body in pieces of any size, then `finish`: what they return, joined, is sealed."""

    def __init__(self, key: DataKey) -> None:
        self._key = key
        self._pending = bytearray()
        self._number = 0
        self.num_bytes = 0
        """How long the body is so far, before it is sealed."""

    def feed(self, data: bytes) -> bytes:
        self.num_bytes += len(data)
        self._pending += data
        sealed = []
        # NOTE: a whole segment waits until more comes, since it may be the last.
        while len(self._pending) > SEGMENT_BYTES:
            segment = bytes(self._pending[:SEGMENT_BYTES])
            del self._pending[:SEGMENT_BYTES]
            sealed.append(self._key.seal_segment(self._number, segment, is_last=False))
            self._number += 1
        return b"".join(sealed)

    def finish(self) -> bytes:
        return self._key.seal_segment(self._number, bytes(self._pending), is_last=True)


class Opener:
    """The inverse of `Sealer`. Raises SealBrokenError before it returns a byte that is wrong."""

    def __init__(self, key: DataKey) -> None:
        self._key = key
        self._pending = bytearray()
        self._number = 0

    def feed(self, sealed: bytes) -> bytes:
        self._pending += sealed
        opened = []
        while len(self._pending) > _SEALED_SEGMENT_BYTES:
            segment = bytes(self._pending[:_SEALED_SEGMENT_BYTES])
            del self._pending[:_SEALED_SEGMENT_BYTES]
            opened.append(self._key.open_segment(self._number, segment, is_last=False))
            self._number += 1
        return b"".join(opened)

    def finish(self) -> bytes:
        """The last segment. Raises SealBrokenError where the body was cut short."""
        return self._key.open_segment(self._number, bytes(self._pending), is_last=True)


def _segment_nonce(number: int, *, is_last: bool) -> bytes:
    return number.to_bytes(_NONCE_BYTES - 1, "big") + bytes([is_last])


def _derive(secret: bytes) -> bytes:
    """A key and its id from a secret text (HKDF, RFC 5869)."""
    length = _KEY_BYTES + _KEY_ID_BYTES
    return HKDF(algorithm=SHA256(), length=length, salt=None, info=_ENVELOPE).derive(secret)
