"""The check of the tests can fail: a harmless edit, a stale one and a broken copy catch nothing."""

from __future__ import annotations

import dataclasses

import pytest

from tests.kernels_gpu.seeded_bugs import SeededBug
from tests.kernels_gpu.seeded_bugs.__main__ import Outcome, confirmed, try_bug
from tests.kernels_gpu.seeded_bugs.bfloat16_shim import BUGS, SHIM

AREA = "bfloat16_shim"
HARMLESS = SeededBug("harmless", SHIM, "For tests alone.", "For nothing but tests.")
STALE = SeededBug("stale", SHIM, "no such text", "anything")
SYNTAX = SeededBug("not Python", SHIM, "def install() -> None:", "def install(:")


@pytest.mark.parametrize(
    ("bug", "problem"),
    [
        (HARMLESS, "every test passes with it"),
        (STALE, f"{SHIM} has it 0 times: 'no such text'"),
        (SYNTAX, "pytest ended with 4, not with a failed test"),
    ],
    ids=lambda value: value.name if isinstance(value, SeededBug) else "",
)
def test_control_what_no_test_fails_on_is_not_caught(bug: SeededBug, problem: str) -> None:
    outcome = try_bug(AREA, bug)
    assert outcome.caught_by is None
    assert outcome.problem == problem
    assert "NOT CAUGHT" in outcome.line()


def test_control_a_test_that_fails_without_a_bug_notices_none() -> None:
    test = f"tests/kernels_gpu/test_{AREA}.py::test_that_there_is_not"
    (unsound,) = confirmed([Outcome(AREA, HARMLESS, test, None, 0.0)])
    assert unsound.caught_by is None
    assert "fails without it too" in unsound.line()


def test_an_area_without_tests_catches_nothing() -> None:
    assert try_bug("nowhere", BUGS[0]).problem == "there is no test_nowhere*.py"


def test_a_bug_fits_only_where_its_text_stands_once() -> None:
    twice = dataclasses.replace(STALE, old="a")
    with pytest.raises(ValueError, match="has it 2 times"):
        twice.put_into("a b a")
    assert twice.put_into("a b") == "anything b"
