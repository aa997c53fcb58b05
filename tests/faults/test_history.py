"""The checker finds what it must: each kind of harm, done to a history that is well."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from tests.faults.history import Answer, Call, Outcome, Row, Verdict, judge

ANSWERS = {"q": Answer("abcdef", 6, "length")}

History = tuple[list[Call], list[Row]]


def well() -> History:
    calls = [
        Call(
            "q",
            invoked_at=0.0,
            request_id=f"r{i}",
            pieces=["abc", "def"],
            finish_reasons=["length"],
            num_tokens=6,
            num_ends=1,
            outcome=Outcome.OK,
        )
        for i in range(3)
    ]
    return calls, [Row(f"r{i}", "ended", [("length", 6, 1 + i)]) for i in range(3)]


def verdict(history: History, *, may_cut: bool = False) -> Verdict:
    calls, rows = history
    return judge(calls, ANSWERS, rows, may_cut=may_cut)


def test_a_history_that_is_well_is_clean() -> None:
    found = verdict(well())
    assert found.is_clean
    assert (found.num_ok, found.moved) == (3, 2)


def drop_a_token(calls: list[Call], rows: list[Row]) -> None:
    calls[0].pieces = ["abc", "ef"]


def repeat_a_token(calls: list[Call], rows: list[Row]) -> None:
    calls[0].pieces = ["abc", "cdef"]


def change_a_token_of_a_cut_stream(calls: list[Call], rows: list[Row]) -> None:
    calls[0].pieces = ["abX"]
    calls[0].outcome = Outcome.CUT


def count_a_token_too_many(calls: list[Call], rows: list[Row]) -> None:
    calls[0].num_tokens = 7


def fail_a_stream(calls: list[Call], rows: list[Row]) -> None:
    calls[0].outcome = Outcome.FAILED


def cut_a_stream(calls: list[Call], rows: list[Row]) -> None:
    calls[0].outcome = Outcome.CUT


def leave_a_request_open(calls: list[Call], rows: list[Row]) -> None:
    rows[0] = Row("r0", "accepted", [])


def end_a_request_twice(calls: list[Call], rows: list[Row]) -> None:
    rows[0] = replace(rows[0], finals=[*rows[0].finals, ("stop", 6, 2)])


def end_a_stream_twice(calls: list[Call], rows: list[Row]) -> None:
    calls[0].num_ends = 2


def answer_two_calls_with_one_request(calls: list[Call], rows: list[Row]) -> None:
    calls[1].request_id = "r0"
    del rows[1]


def bill_a_token_more(calls: list[Call], rows: list[Row]) -> None:
    rows[0] = replace(rows[0], finals=[("length", 7, 1)])


def bill_for_another_end(calls: list[Call], rows: list[Row]) -> None:
    rows[0] = replace(rows[0], finals=[("abort", 6, 1)])


def forget_a_row(calls: list[Call], rows: list[Row]) -> None:
    del rows[0]


def bill_what_nobody_asked(calls: list[Call], rows: list[Row]) -> None:
    rows.append(Row("r9", "ended", [("stop", 6, 1)]))


@pytest.mark.parametrize(
    ("harm", "kind"),
    [
        (drop_a_token, "different"),
        (repeat_a_token, "different"),
        (change_a_token_of_a_cut_stream, "different"),
        (count_a_token_too_many, "different"),
        (fail_a_stream, "lost"),
        (cut_a_stream, "lost"),
        (leave_a_request_open, "lost"),
        (end_a_request_twice, "duplicated"),
        (end_a_stream_twice, "duplicated"),
        (answer_two_calls_with_one_request, "duplicated"),
        (bill_a_token_more, "ledger"),
        (bill_for_another_end, "ledger"),
        (forget_a_row, "ledger"),
        (bill_what_nobody_asked, "ledger"),
    ],
)
def test_harm_is_found(harm: Callable[[list[Call], list[Row]], None], kind: str) -> None:
    history = well()
    harm(*history)
    assert getattr(verdict(history), kind)


def test_what_is_refused_and_what_a_killed_process_cuts_is_no_loss() -> None:
    calls, rows = well()
    calls.append(Call("q", 0.0, outcome=Outcome.REFUSED))
    rows.append(Row("r9", "ended", [("not_enqueued", 0, 0)]))
    calls.append(Call("q", 0.0, request_id="r8", pieces=["abc"]))
    rows.append(Row("r8", "ended", [("api_lost", 3, 1)]))
    assert verdict((calls, rows), may_cut=True).is_clean
