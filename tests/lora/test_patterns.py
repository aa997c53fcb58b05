"""A pattern that is let through means in RE2 what it means to PEFT, in time that is bounded."""

from __future__ import annotations

import re
import warnings

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lora.base_spec import MODULES
from lora.patterns import PatternError, check_pattern, compile_pattern

NAMES = [f"model.layers.{layer}.{module}" for layer in (0, 1, 12) for module in MODULES]

_ATOMS = st.sampled_from(
    [
        *("q", "k", "_proj", "q_proj", "mlp", "layers", "model", r"\.", ".", ".*", ".*?", r"\d+"),
        *("[qkv]", "[^q]", "[0-2]", "[a-z_]+", "(q|v)", "(?:up|down)", r"\b", "^", "$", r"\w*"),
        *("(?!k)", r"(?!.*\.experts\.\d)", "(?=q)", "{1,2}", "{,2}", "|", "?", "+", "]", "[", "\\"),
        *(r"\Z", r"\A", r"\1", "(?i)", "(?P<n>q)", "[]q]", "[^]q]", r"[\d.]", r"\S", "}", "x{"),
    ]
)
_PATTERNS = st.lists(_ATOMS, min_size=1, max_size=7).map("".join)


def python_matches(pattern: str) -> list[str]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        return [name for name in NAMES if re.fullmatch(pattern, name)]


@settings(max_examples=700, deadline=None)
@given(_PATTERNS)
def test_a_pattern_matches_what_python_matches_or_is_refused(pattern: str) -> None:
    try:
        compiled = compile_pattern(check_pattern(pattern, 256, NAMES))
    except PatternError:
        return
    assert [name for name in NAMES if compiled.fullmatch(name)] == python_matches(pattern)


@settings(max_examples=700, deadline=None)
@given(_PATTERNS)
def test_a_key_matches_what_peft_matches_or_is_refused(key: str) -> None:
    try:
        compiled = compile_pattern(rf"(.*\.)?({check_pattern(key, 256)})$")
    except PatternError:
        return
    expected = [name for name in NAMES if re.match(rf"(.*\.)?({key})$", name)]
    assert [name for name in NAMES if compiled.match(name)] == expected


@pytest.mark.parametrize(
    "pattern",
    [
        r".*(?!.*\.experts\.\d)\.q_proj",
        r"(?:.*?(?:language|text).*?\.(?:q_proj|v_proj))|(?:\bmodel\.layers\.[\d]{1,}"
        r"(?!.*\.experts\.\d)\..*?(?:self_attn|mlp).*?\.(?:(?:q_proj|v_proj)))",
        r"(?!vision)(?!a(b[)(]c)).*q_proj",
    ],
)
def test_a_look_ahead_that_excludes_nothing_here_is_let_through(pattern: str) -> None:
    compiled = compile_pattern(check_pattern(pattern, 512, NAMES))
    found = [name for name in NAMES if compiled.fullmatch(name)]
    assert found == python_matches(pattern)
    assert found


@pytest.mark.parametrize("pattern", ["^*", "$+", "(.*\\.)?(?i)$", "[a--b]", "[a&&b]", "[a||b]"])
def test_what_python_cannot_read_is_refused(pattern: str) -> None:
    with pytest.raises(PatternError):
        compile_pattern(check_pattern(pattern, 512))


def test_a_look_ahead_leaves_what_is_beside_it_apart() -> None:
    pattern = r"(?:x{1(?!zz),1}|.*q_proj)"
    compiled = compile_pattern(check_pattern(pattern, 256, NAMES))
    assert compiled.fullmatch("x{1,1}") and re.fullmatch(pattern, "x{1,1}")
    assert compiled.fullmatch("x") is None and re.fullmatch(pattern, "x") is None


def test_a_look_ahead_that_excludes_something_is_refused() -> None:
    with pytest.raises(PatternError, match="excludes modules"):
        check_pattern(r".*(?!q_proj)[qv]_proj", 256, NAMES)


@pytest.mark.timeout(60)
@pytest.mark.parametrize("pattern", [r"(.*.*)*x", r"(a|a)*b", r"((m|mo|mod)+)+$", r"(.*\w)*!"])
def test_what_would_backtrack_for_ever_ends(pattern: str) -> None:
    compiled = compile_pattern(check_pattern(pattern, 256))
    assert [name for name in NAMES if compiled.fullmatch(name * 4)] == []
