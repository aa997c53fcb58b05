"""Codes are API: each is documented, with its status, and every text is safe to show."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lora.config_fields import NO_BEARING
from lora.findings import REFUSALS, WARNINGS, Finding, Findings, ManifestError, clean

PAGE = (Path(__file__).parents[2] / "docs" / "adapter-formats.md").read_text()


def test_every_refusal_is_documented_in_its_order() -> None:
    rows = [line for line in PAGE.splitlines() if line.startswith("| `")]
    expected = [
        f"| `{code}` | {refusal.status} | {refusal.summary} |" for code, refusal in REFUSALS.items()
    ]
    assert [row for row in rows if row in expected] == expected


def test_every_warning_is_documented() -> None:
    for code, summary in WARNINGS.items():
        assert f"| `{code}` | {summary} |" in PAGE


def test_every_field_without_bearing_is_documented() -> None:
    assert [name for name in sorted(NO_BEARING) if f"`{name}`" not in PAGE] == []


def test_an_errors_code_is_the_first_in_table_order_and_never_a_warning() -> None:
    findings = Findings("adapter_config.json")
    findings.warn("keys_remapped", "a warning")
    findings.refuse("tensor_missing", "later in the table")
    findings.refuse("rank_invalid", "earlier in the table", param="r", expected=8, actual=[1])
    error = ManifestError(findings.all())
    assert (error.code, error.status, error.message) == (
        "rank_invalid",
        422,
        "earlier in the table",
    )
    assert error.findings[-1] == Finding(
        "rank_invalid", "error", "earlier in the table", "adapter_config.json", "r", "8", "[1]"
    )


def test_a_code_that_is_not_in_the_table_cannot_be_reported() -> None:
    with pytest.raises(AssertionError):
        Findings().refuse("made_up", "x")
    with pytest.raises(AssertionError):
        Findings().warn("rank_invalid", "x")


@given(st.text(alphabet=st.characters(codec=None), max_size=600))
def test_a_tenants_text_is_made_safe_to_show(text: str) -> None:
    shown = clean(text)
    assert shown.isprintable()
    assert len(shown) <= 503
    json.dumps(shown).encode()
    shown.encode("utf-8")
