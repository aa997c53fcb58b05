"""Token ids to text, a token at a time, cut only where the text is already certain.

Knows nothing of stop strings or of HTTP. Invariant: the pieces joined are exactly what
`tokenizers` decodes from all the ids at once (special tokens skipped). A character whose bytes are
spread over tokens appears once, whole; U+FFFD appears only where the model's own bytes are no
UTF-8.

`tokenizers.decoders.DecodeStream` is not used: it compares decoded prefixes, so it holds back text
for as long as a broken byte is in view, and raises on some token lists.
"""

from __future__ import annotations

import codecs
import json
import re
from dataclasses import dataclass, field
from typing import Any, Protocol

import tokenizers

_BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>")


class UnsupportedTokenizerError(ValueError):
    """The tokenizer's decoder is of a kind whose text cannot be cut exactly."""


class Detokenizer(Protocol):
    """The text of one sequence, in order."""

    def push(self, token_id: int) -> str:
        """The text that became certain with this token; often empty."""

    def flush(self) -> str:
        """The sequence is over: the text of what was still uncertain."""


@dataclass(frozen=True, slots=True)
class ByteLevelVocabulary:
    """What each token id adds, as bytes (GPT-2's byte alphabet: Llama 3, SmolLM2)."""

    pieces: list[bytes] = field(repr=False)

    def start(self) -> Detokenizer:
        return _ByteLevelDetokenizer(self.pieces)


class _ByteLevelDetokenizer:
    def __init__(self, pieces: list[bytes]) -> None:
        self._pieces = pieces
        self._utf8 = codecs.getincrementaldecoder("utf-8")(errors="replace")

    def push(self, token_id: int) -> str:
        if not 0 <= token_id < len(self._pieces):
            return ""  # a padded vocabulary's rows have no token
        return self._utf8.decode(self._pieces[token_id])

    def flush(self) -> str:
        return self._utf8.decode(b"", final=True)


@dataclass(frozen=True, slots=True)
class ByteFallbackVocabulary:
    """What each token id adds: text, or one raw byte `<0xNN>` (SentencePiece: Llama 2).

    `num_stripped` spaces are taken off the front of the whole text.
    """

    pieces: list[str | bytes] = field(repr=False)
    num_stripped: int

    def start(self) -> Detokenizer:
        return _ByteFallbackDetokenizer(self.pieces, self.num_stripped)


class _ByteFallbackDetokenizer:
    def __init__(self, pieces: list[str | bytes], num_stripped: int) -> None:
        self._pieces = pieces
        self._num_to_strip = num_stripped
        self._run = bytearray()

    def push(self, token_id: int) -> str:
        if not 0 <= token_id < len(self._pieces):
            return ""
        piece = self._pieces[token_id]
        if isinstance(piece, bytes):
            # A run of byte tokens is text or garbage as a whole, so it is shown once it ends.
            self._run += piece
            return ""
        if not piece:
            return ""  # a special token does not end a run
        return self._strip(self._end_run() + piece)

    def flush(self) -> str:
        return self._strip(self._end_run())

    def _end_run(self) -> str:
        run = bytes(self._run)
        self._run.clear()
        try:
            return run.decode("utf-8")
        except UnicodeDecodeError:
            return "\ufffd" * len(run)

    def _strip(self, text: str) -> str:
        while text and self._num_to_strip:
            if not text.startswith(" "):
                self._num_to_strip = 0
                break
            text = text[1:]
            self._num_to_strip -= 1
        return text


Vocabulary = ByteLevelVocabulary | ByteFallbackVocabulary


def read_vocabulary(tokenizer: tokenizers.Tokenizer) -> Vocabulary:
    """What each id of this tokenizer adds to the text; special tokens add nothing.

    Raises UnsupportedTokenizerError for a decoder that is neither byte-level nor byte-fallback.
    """
    decoder: dict[str, Any] = json.loads(tokenizer.to_str()).get("decoder") or {}
    steps = decoder.get("decoders", []) if decoder.get("type") == "Sequence" else [decoder]
    kinds = [step.get("type") for step in steps]
    if kinds == ["ByteLevel"]:
        return _byte_level(_spellings(tokenizer))
    if kinds in (["Replace", "ByteFallback", "Fuse"], ["Replace", "ByteFallback", "Fuse", "Strip"]):
        return _byte_fallback(_spellings(tokenizer), steps)
    raise UnsupportedTokenizerError(f"unsupported tokenizer decoder: {kinds}")


def _spellings(tokenizer: tokenizers.Tokenizer) -> list[str]:
    """Each token as the vocabulary spells it; empty for special tokens and gaps between ids."""
    vocabulary = tokenizer.get_vocab(with_added_tokens=True)
    spellings = [""] * (max(vocabulary.values(), default=-1) + 1)
    for token, token_id in vocabulary.items():
        spellings[token_id] = token
    for token_id, added in tokenizer.get_added_tokens_decoder().items():
        spellings[token_id] = "" if added.special else added.content
    return spellings


def _byte_level(spellings: list[str]) -> ByteLevelVocabulary:
    byte_of_char = _byte_alphabet()

    def piece(token: str) -> bytes:
        try:
            return bytes(byte_of_char[char] for char in token)
        except KeyError:
            return token.encode()  # an added token is spelled as itself

    return ByteLevelVocabulary([piece(token) for token in spellings])


def _byte_alphabet() -> dict[str, int]:
    """GPT-2's spelling of each byte by a printable character (`bytes_to_unicode`)."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in set(printable)]
    alphabet = {chr(byte): byte for byte in printable}
    return alphabet | {chr(256 + i): byte for i, byte in enumerate(others)}


def _byte_fallback(spellings: list[str], steps: list[dict[str, Any]]) -> ByteFallbackVocabulary:
    replaced = steps[0].get("pattern", {}).get("String")
    none: dict[str, Any] = {"content": " ", "start": 0, "stop": 0}
    strip = steps[3] if len(steps) == 4 else none
    if not isinstance(replaced, str) or strip["content"] != " " or strip["stop"] != 0:
        raise UnsupportedTokenizerError(f"unsupported tokenizer decoder: {steps}")

    def piece(token: str) -> str | bytes:
        byte = _BYTE_TOKEN.fullmatch(token)
        return bytes([int(byte[1], 16)]) if byte else token.replace(replaced, steps[0]["content"])

    return ByteFallbackVocabulary([piece(token) for token in spellings], strip["start"])
