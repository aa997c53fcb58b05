"""The demo's base model, converted once per test run."""

from __future__ import annotations

from pathlib import Path

import pytest

from app.demo.base_model import ensure_base_model


@pytest.fixture(scope="session")
def demo_base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return ensure_base_model(tmp_path_factory.mktemp("models") / "SmolLM2-135M-Instruct")
