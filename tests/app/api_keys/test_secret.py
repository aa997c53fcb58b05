"""A key shows by itself that it is one, and nothing that is not one is looked up."""

from __future__ import annotations

import random
import re

import httpx
import pytest

from app.api import create_app
from app.api_keys.secret import SECRET_CHARS, is_well_formed, new_secret
from app.context import open_context
from app.settings import Settings

ALPHABET = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"


def test_new_secret_is_well_formed_and_one_word() -> None:
    secrets = {new_secret() for _ in range(200)}
    assert len(secrets) == 200
    assert all(is_well_formed(secret) for secret in secrets)
    assert all(re.fullmatch(r"tf_[0-9A-Za-z]{49}", secret) for secret in secrets)


def test_one_wrong_character_is_noticed_wherever_it_is() -> None:
    draw = random.Random(1)
    secret = new_secret()
    for place in range(SECRET_CHARS):
        wrong = draw.choice([char for char in ALPHABET if char != secret[place]])
        assert not is_well_formed(secret[:place] + wrong + secret[place + 1 :])


@pytest.mark.parametrize("text", ["", "tf_", "tf_" + "0" * 49, "tfa_" + "x" * 48, "x" * 300, "ü"])
def test_what_was_never_made_is_not_well_formed(text: str) -> None:
    assert not is_well_formed(text)
    assert not is_well_formed(new_secret() + text[:1]) or not text


async def test_a_malformed_key_costs_no_look_up(settings: Settings) -> None:
    """Without a registry what is looked up is a 503: the control."""
    url = "postgresql+asyncpg://tenfold_app:x@127.0.0.1:1/none"
    async with open_context(settings.model_copy(update={"database_url": url})) as context:
        transport = httpx.ASGITransport(create_app(context))
        async with httpx.AsyncClient(transport=transport, base_url="http://t") as client:
            good = new_secret()
            malformed, looked_up = [
                await client.get("/v1/models", headers={"x-api-key": key})
                for key in (good[:-1] + ("0" if good[-1] != "0" else "1"), good)
            ]
    assert malformed.status_code == 401
    assert looked_up.status_code == 503
