"""The commands are made once for all of these tests: a runner would make all of them for each."""

from __future__ import annotations

from functools import cache

import pytest
import typer

made_once = cache(typer.main.get_command)


@pytest.fixture(autouse=True)
def commands_made_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("typer.testing._get_command", made_once)
