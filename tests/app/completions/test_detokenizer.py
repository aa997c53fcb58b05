from __future__ import annotations

import pytest
import tokenizers
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from tokenizers import decoders, models

from app.completions.detokenizer import (
    Detokenizer,
    UnsupportedTokenizerError,
    Vocabulary,
    read_vocabulary,
)
from app.completions.tokenizer import Tokenizer

THE_QUICK_BROWN_FOX = [504, 2365, 6354, 16438]
SMILEY = [10813, 38887]
SAMGYEOPSAL = [183, 220, 137, 181, 127, 134, 183, 220, 129]
FAMILY = "\N{MAN}\u200d\N{WOMAN}\u200d\N{GIRL}\u200d\N{BOY}"
REPLACEMENT = "\N{REPLACEMENT CHARACTER}"

# Ids below 300 are special tokens and single bytes: what breaks UTF-8 most often. Some ids lie
# past the vocabulary, as those of a padded embedding do.
token_ids = st.lists(st.integers(0, 299) | st.integers(0, 49_160), max_size=40)


def pieces(detokenizer: Detokenizer, ids: list[int]) -> list[str]:
    return [*(detokenizer.push(token_id) for token_id in ids), detokenizer.flush()]


@settings(deadline=None)
@given(ids=token_ids)
def test_the_pieces_joined_are_what_the_tokenizer_decodes(
    tokenizer: Tokenizer, ids: list[int]
) -> None:
    joined = "".join(pieces(tokenizer.start_detokenizer(), ids))
    assert joined == tokenizer.model.decode(ids, skip_special_tokens=True)


@settings(deadline=None)
@given(text=st.text())
def test_any_text_comes_back_whole_and_never_holds_a_broken_character(
    tokenizer: Tokenizer, text: str
) -> None:
    ids = tokenizer.model.encode(text, add_special_tokens=False).ids
    assume(tokenizer.model.decode(ids) == text)  # a few bytes have no token in this vocabulary
    shown = pieces(tokenizer.start_detokenizer(), ids)
    assert "".join(shown) == text
    assert REPLACEMENT in text or all(REPLACEMENT not in piece for piece in shown)


@pytest.mark.parametrize(
    ("ids", "expected"),
    [
        (THE_QUICK_BROWN_FOX, ["The", " quick", " brown", " fox", ""]),
        (SMILEY, ["", "\N{SLIGHTLY SMILING FACE}", ""]),
        (SAMGYEOPSAL, ["", "", "삼", "", "", "겹", "", "", "살", ""]),
        (SAMGYEOPSAL[:4], ["", "", "삼", "", REPLACEMENT]),
        ([504, 2, 0, 1, 2365], ["The", "", "", "", " quick", ""]),
        ([], [""]),
    ],
)
def test_a_character_appears_once_whole_as_soon_as_its_last_byte_is_there(
    tokenizer: Tokenizer, ids: list[int], expected: list[str]
) -> None:
    assert pieces(tokenizer.start_detokenizer(), ids) == expected


def test_a_joined_emoji_is_whole_after_its_last_token(tokenizer: Tokenizer) -> None:
    ids = tokenizer.model.encode(FAMILY, add_special_tokens=False).ids
    assert len(ids) > 4
    assert "".join(pieces(tokenizer.start_detokenizer(), ids)) == FAMILY


def test_decoding_token_by_token_would_break_characters(tokenizer: Tokenizer) -> None:
    """The negative control: what the detokenizer is there to avoid does happen without it."""
    naive = "".join(tokenizer.model.decode([token_id]) for token_id in SAMGYEOPSAL)
    assert REPLACEMENT in naive


def byte_fallback_tokenizer(*, strips: bool) -> tokenizers.Tokenizer:
    """A small one of Llama 2's kind."""
    tokens = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256))]
    tokens += ["▁Hello", "▁", "world", "é", "▁▁", "a▁b"]
    vocabulary = {token: i for i, token in enumerate(tokens)}
    tokenizer = tokenizers.Tokenizer(
        models.BPE(vocab=vocabulary, merges=[], byte_fallback=True, unk_token="<unk>")
    )
    steps = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    tokenizer.decoder = decoders.Sequence(steps + [decoders.Strip(" ", 1, 0)] * strips)
    tokenizer.add_special_tokens(["<s>", "</s>"])
    tokenizer.add_tokens(["<think>"])
    return tokenizer


@pytest.fixture(scope="module", params=[True, False], ids=["strips", "keeps"])
def byte_fallback(request: pytest.FixtureRequest) -> tuple[tokenizers.Tokenizer, Vocabulary]:
    tokenizer = byte_fallback_tokenizer(strips=request.param)
    return tokenizer, read_vocabulary(tokenizer)


bytes_of_emoji = st.sampled_from([byte + 3 for byte in "😀é ab".encode()])


@settings(deadline=None)
@given(ids=st.lists(bytes_of_emoji | st.integers(1, 2) | st.integers(230, 266), max_size=16))
def test_byte_fallback_pieces_joined_are_what_the_tokenizer_decodes(
    byte_fallback: tuple[tokenizers.Tokenizer, Vocabulary], ids: list[int]
) -> None:
    tokenizer, vocabulary = byte_fallback
    joined = "".join(pieces(vocabulary.start(), ids))
    assert joined == tokenizer.decode(ids, skip_special_tokens=True)


def test_a_decoder_that_cannot_be_cut_exactly_is_refused() -> None:
    tokenizer = tokenizers.Tokenizer(models.WordPiece({"a": 0}, unk_token="a"))
    tokenizer.decoder = decoders.WordPiece()
    with pytest.raises(UnsupportedTokenizerError, match="WordPiece"):
        read_vocabulary(tokenizer)
