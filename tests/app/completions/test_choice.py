from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from app.completions.choice import Choice, Delta
from app.completions.tokenizer import Tokenizer
from engine.messages import FinishReason, TokenOutput
from engine.reasoning import ReasoningCount

IM_END = 2
FOX = [504, 2365, 6354, 16438]
THINK_END = [9617, 17400, 46]
OPEN, CLOSE = 10813, 183  # any two will do


def output(index: int, ids: list[int], reason: FinishReason | None = None) -> TokenOutput:
    return TokenOutput(
        request_id="r",
        epoch=0,
        index=index,
        token_ids=ids,
        num_prompt_tokens=3,
        num_generated_tokens=index + len(ids),
        num_cached_tokens=2,
        finish_reason=reason,
    )


def start(tokenizer: Tokenizer, stops: list[str] | None = None) -> Choice:
    return Choice(0, tokenizer.start_detokenizer(), stops or [], [IM_END])


def run(
    choice: Choice, ids: list[int], sizes: list[int], reason: FinishReason
) -> tuple[str, str | None, int]:
    """Text, finish reason and counted tokens, for one grouping of the tokens into messages."""
    text, begin = "", 0
    borders = [*sorted({min(size, len(ids)) for size in sizes}), len(ids)]
    for end in borders:
        is_last = end == len(ids)
        delta = choice.take(output(begin, ids[begin:end], reason if is_last else None))
        text, begin = text + delta.text, end
        if choice.is_finished:
            break
    return text, choice.finish_reason, choice.num_tokens


@settings(deadline=None)
@given(
    ids=st.lists(st.sampled_from([*FOX, *THINK_END, 10813, 38887, 183, 220, 137]), max_size=20),
    stops=st.lists(st.sampled_from(["own fox", "</think>", "\N{SLIGHTLY SMILING FACE}", "e"])),
    sizes=st.lists(st.integers(1, 20)),
)
def test_text_and_usage_do_not_depend_on_how_tokens_are_grouped(
    tokenizer: Tokenizer, ids: list[int], stops: list[str], sizes: list[int]
) -> None:
    one_by_one = run(start(tokenizer, stops), ids, list(range(1, 21)), FinishReason.LENGTH)
    assert run(start(tokenizer, stops), ids, [], FinishReason.LENGTH) == one_by_one
    assert run(start(tokenizer, stops), ids, sizes, FinishReason.LENGTH) == one_by_one


def test_a_stop_over_token_borders_counts_the_tokens_up_to_the_one_that_completed_it(
    tokenizer: Tokenizer,
) -> None:
    choice = start(tokenizer, ["own fox"])
    delta = choice.take(output(0, [*FOX, 30, 30, 30]))
    assert delta == Delta(0, "The quick br", "stop")
    assert choice.num_tokens == 4


def test_a_stop_token_is_counted_and_never_becomes_text(tokenizer: Tokenizer) -> None:
    choice = start(tokenizer)
    assert choice.take(output(0, [504, IM_END], FinishReason.STOP)) == Delta(0, "The", "stop")
    assert choice.num_tokens == 2
    assert choice.num_cached_tokens == 2


def test_what_a_stop_held_back_is_shown_where_the_text_ends_without_it(
    tokenizer: Tokenizer,
) -> None:
    choice = start(tokenizer, [" fox jumps"])
    assert choice.take(output(0, FOX)) == Delta(0, "The quick brown")
    assert choice.take(output(4, [], FinishReason.LENGTH)) == Delta(0, " fox", "length")


def test_an_answer_cut_inside_a_character_shows_one_replacement(tokenizer: Tokenizer) -> None:
    choice = start(tokenizer)
    assert choice.take(output(0, [504, 10813], FinishReason.LENGTH)).text == "The\ufffd"


@settings(deadline=None)
@given(
    ids=st.lists(st.sampled_from([*FOX, OPEN, CLOSE]), max_size=20),
    stops=st.lists(st.sampled_from(["own fox", "fox"])),
    sizes=st.lists(st.integers(1, 20)),
)
def test_reasoning_is_counted_up_to_the_token_that_ends_the_answer(
    tokenizer: Tokenizer, ids: list[int], stops: list[str], sizes: list[int]
) -> None:
    prompt = [504, OPEN]
    choice = Choice(
        0, tokenizer.start_detokenizer(), stops, [IM_END], ReasoningCount((OPEN, CLOSE), prompt)
    )
    run(choice, ids, sizes, FinishReason.LENGTH)
    counted = ReasoningCount((OPEN, CLOSE), prompt, ids[: choice.num_tokens])
    assert choice.num_reasoning_tokens == counted.num_tokens


def test_control_without_tokens_for_it_nothing_is_reasoning(tokenizer: Tokenizer) -> None:
    choice = start(tokenizer)
    run(choice, [OPEN, *FOX], [], FinishReason.LENGTH)
    assert choice.num_reasoning_tokens == 0
