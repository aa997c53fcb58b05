"""Of several secrets in one setting the first is used, and any of them is believed."""

from __future__ import annotations

import pytest

from engine.transport.secret_list import secrets_of


@pytest.mark.parametrize(
    ("text", "secrets"),
    [
        ("one", ("one",)),
        (" new , old\n", ("new", "old")),
        ("a b", ("a b",)),
        ("new,", ("new", "")),  # whoever asks for a least length refuses the empty one
        ("", ("",)),
    ],
)
def test_secrets_lie_between_commas_in_order(text: str, secrets: tuple[str, ...]) -> None:
    assert secrets_of(text) == secrets
