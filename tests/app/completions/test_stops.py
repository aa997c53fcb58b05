from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from app.completions.stops import StopMatcher

few_letters = st.text(alphabet="ab", max_size=40)
stop_lists = st.lists(st.text(alphabet="ab", min_size=1, max_size=5), max_size=4)


def run(stops: list[str], pieces: list[str]) -> tuple[list[str], bool]:
    """Shown pieces (with the flush, if the text ended on its own) and whether a stop matched."""
    matcher = StopMatcher(stops)
    shown = []
    for piece in pieces:
        result = matcher.push(piece)
        shown.append(result.text)
        if result.is_matched:
            return shown, True
    return [*shown, matcher.flush()], False


def specification(stops: list[str], text: str) -> tuple[str, bool]:
    """Grow the text a character at a time until it ends with a stop string; drop that."""
    for end in range(1, len(text) + 1):
        ending = [stop for stop in stops if text[:end].endswith(stop)]
        if ending:
            return text[: end - max(map(len, ending))], True
    return text, False


def cut(text: str, cuts: list[int]) -> list[str]:
    borders = [0, *sorted(min(c, len(text)) for c in cuts), len(text)]
    return [text[a:b] for a, b in pairwise(borders)]


@settings(deadline=None)
@given(stops=stop_lists, text=few_letters, cuts=st.lists(st.integers(0, 40), max_size=10))
def test_the_text_shown_is_the_specification_however_it_is_cut(
    stops: list[str], text: str, cuts: list[int]
) -> None:
    shown, is_matched = run(stops, cut(text, cuts))
    assert ("".join(shown), is_matched) == specification(stops, text)


@settings(deadline=None)
@given(stops=stop_lists, text=few_letters)
def test_only_a_proper_prefix_of_some_stop_is_held_back(stops: list[str], text: str) -> None:
    matcher = StopMatcher(stops)
    result = matcher.push(text)
    assume(not result.is_matched)
    held = text.removeprefix(result.text)
    assert held == "" or any(stop.startswith(held) and stop != held for stop in stops)


@pytest.mark.parametrize(
    ("stops", "pieces", "shown"),
    [
        (["own fox"], ["The", " quick", " brown", " fox"], ["The", " quick", " br", ""]),
        (["row"], ["The", " brown", " fox"], ["The", " b"]),
        (["ab", "abc"], ["xa", "bc"], ["x", ""]),
        (["</think>"], ["yes", "</", "think", ">"], ["yes", "", "", ""]),
        (["</think>"], ["a</", "thin", "g"], ["a", "", "</thing", ""]),
        (["aab"], ["aa", "a", "b"], ["", "a", ""]),
        (["END"], ["the E", "N"], ["the ", "", "EN"]),
        ([], ["as", "is"], ["as", "is", ""]),
    ],
)
def test_text_is_shown_as_soon_as_no_stop_can_begin_in_it(
    stops: list[str], pieces: list[str], shown: list[str]
) -> None:
    assert run(stops, pieces)[0] == shown


def test_nothing_is_shown_after_a_match() -> None:
    matcher = StopMatcher(["x"])
    assert matcher.push("ax b").text == "a"
    assert matcher.push("more").text == ""
    assert matcher.flush() == ""
