"""The grammar of `model`: what belongs to it, and that every name denotes one thing."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.adapters.names import AdapterName, is_adapter_name, is_alias, parse_model

NAMES = st.from_regex(r"[a-z0-9][a-z0-9._-]{0,62}", fullmatch=True)
DIGEST = "sha256:" + "ab12" * 16


@pytest.mark.parametrize(
    ("model", "parsed"),
    [
        ("support-bot", AdapterName("support-bot", alias="prod")),
        ("support-bot:canary", AdapterName("support-bot", alias="canary")),
        ("support-bot@v3", AdapterName("support-bot", number=3)),
        (f"support-bot@{DIGEST}", AdapterName("support-bot", digest_prefix=DIGEST)),
        ("a@sha256:ab12ab12ab12", AdapterName("a", digest_prefix="sha256:ab12ab12ab12")),
    ],
)
def test_every_form_is_understood(model: str, parsed: AdapterName) -> None:
    assert parse_model(model) == parsed


@pytest.mark.parametrize(
    "model",
    [
        "",
        "Support-Bot",
        "-bot",
        "a" * 64,
        "bot:",
        "bot@",
        "bot@v0",
        "bot@v01",
        "bot@v9999999999",
        "bot@sha256:ab12",
        "bot@sha256:" + "g" * 12,
        "bot@sha256:" + "a" * 65,
        "bot:canary@v3",
        "acme/bot",
        "bot\n",
        "bot ",
        "bot\x00",
        "ｂot",
        "bot@v٣",
        "bot' OR '1'='1",
    ],
)
def test_anything_else_is_no_adapter_name(model: str) -> None:
    assert parse_model(model) is None


@given(NAMES, NAMES)
def test_name_and_alias_come_back_as_they_were(name: str, alias: str) -> None:
    assert parse_model(f"{name}:{alias}") == AdapterName(name, alias=alias)


@given(st.text(max_size=80))
def test_no_text_confuses_the_parser(text: str) -> None:
    parsed = parse_model(text)
    if parsed is not None:
        parts = [parsed.alias, parsed.number, parsed.digest_prefix]
        assert sum(part is not None for part in parts) == 1
        assert text.startswith(parsed.name)


@pytest.mark.parametrize("alias", ["v1", "v42", "sha256", "latest", "base", "", "Prod", "a:b"])
def test_an_alias_is_never_like_a_version_or_a_digest(alias: str) -> None:
    assert not is_alias(alias)


def test_names_that_only_resemble_reserved_ones_are_free() -> None:
    assert is_alias("v1beta") and is_alias("vnext") and is_alias("sha256-old")
    assert is_adapter_name("latest-bot") and not is_adapter_name("latest")
