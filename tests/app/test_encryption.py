"""Whatever is done to a sealed body, what opens is what was sealed, or nothing."""

from __future__ import annotations

import pytest

from app.encryption import (
    SEGMENT_BYTES,
    TAG_BYTES,
    DataKey,
    EnvelopeKeys,
    Opener,
    SealBrokenError,
    Sealer,
)

OLD, NEW = "o" * 32, "n" * 32
SEALED_SEGMENT = SEGMENT_BYTES + TAG_BYTES


def seal(key: DataKey, body: bytes, piece: int) -> bytes:
    sealer = Sealer(key)
    pieces = [sealer.feed(body[at : at + piece]) for at in range(0, len(body), piece)]
    assert sealer.num_bytes == len(body)
    return b"".join([*pieces, sealer.finish()])


def unseal(key: DataKey, sealed: bytes, piece: int = 1 << 20) -> bytes:
    opener = Opener(key)
    pieces = [opener.feed(sealed[at : at + piece]) for at in range(0, len(sealed), piece)]
    return b"".join([*pieces, opener.finish()])


@pytest.mark.parametrize("length", [0, 1, SEGMENT_BYTES - 1, SEGMENT_BYTES, 3 * SEGMENT_BYTES + 7])
def test_what_was_sealed_opens_whatever_the_pieces(length: int) -> None:
    key, _ = EnvelopeKeys(OLD).new_data_key("a")
    body = bytes(i % 251 for i in range(length))
    sealed = seal(key, body, 50_001)
    assert unseal(key, sealed, 70_003) == body
    assert len(sealed) == length + TAG_BYTES * max(1, -(-length // SEGMENT_BYTES))


def test_a_body_that_was_cut_changed_or_reordered_does_not_open() -> None:
    key, _ = EnvelopeKeys(OLD).new_data_key("a")
    sealed = seal(key, bytes(3 * SEGMENT_BYTES), 1 << 20)
    first, second = sealed[:SEALED_SEGMENT], sealed[SEALED_SEGMENT : 2 * SEALED_SEGMENT]
    flipped = bytearray(sealed)
    flipped[100] ^= 1
    for damaged in (
        sealed[: 2 * SEALED_SEGMENT],  # at the end of a segment
        sealed[:-1],
        second + first + sealed[2 * SEALED_SEGMENT :],
        bytes(flipped),
        b"",
    ):
        with pytest.raises(SealBrokenError):
            unseal(key, damaged)
    assert unseal(key, sealed) == bytes(3 * SEGMENT_BYTES)


def test_a_wrapped_key_opens_under_its_own_name_alone() -> None:
    keys = EnvelopeKeys(OLD)
    key, wrapped = keys.new_data_key("ten_a/fil_1")
    sealed = seal(key, b"secret", 10)
    assert unseal(keys.unwrap("ten_a/fil_1", wrapped), sealed) == b"secret"
    for name, held in (("ten_b/fil_1", wrapped), ("ten_a/fil_1", wrapped[:-1]), ("x", b"")):
        with pytest.raises(SealBrokenError):
            keys.unwrap(name, held)


def test_a_record_opens_under_its_own_name_alone() -> None:
    key, _ = EnvelopeKeys(OLD).new_data_key("bat")
    sealed = key.seal_record("7:output", b"answer")
    assert key.open_record("7:output", sealed) == b"answer"
    assert key.seal_record("7:output", b"answer") != sealed
    for name, held in (("8:output", sealed), ("7:output", sealed[:-1]), ("7:output", b"short")):
        with pytest.raises(SealBrokenError):
            key.open_record(name, held)


def test_of_several_envelope_keys_the_first_wraps_and_any_unwraps() -> None:
    old, both, new = EnvelopeKeys(OLD), EnvelopeKeys(f"{NEW}, {OLD}"), EnvelopeKeys(NEW)
    key, wrapped = old.new_data_key("a")
    sealed = seal(key, b"body", 10)
    assert unseal(both.unwrap("a", wrapped), sealed) == b"body"
    with pytest.raises(SealBrokenError):
        new.unwrap("a", wrapped)
    assert not wrapped.startswith(both.current_id)
    anew = both.rewrap("a", wrapped)
    assert anew.startswith(both.current_id) and both.current_id == new.current_id
    assert unseal(new.unwrap("a", anew), sealed) == b"body"


def test_a_short_envelope_key_is_refused() -> None:
    for text in ("", "short", f"{NEW},short"):
        with pytest.raises(ValueError, match="32 characters"):
            EnvelopeKeys(text)
