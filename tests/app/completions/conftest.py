"""The tokenizer that the tests of text speak: SmolLM2's own."""

from __future__ import annotations

from pathlib import Path

import pytest

from app.completions.tokenizer import Tokenizer
from app.demo.base_model import ensure_base_model


@pytest.fixture(scope="session")
def demo_base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return ensure_base_model(tmp_path_factory.mktemp("models") / "SmolLM2-135M-Instruct")


@pytest.fixture(scope="session")
def tokenizer(demo_base: Path) -> Tokenizer:
    return Tokenizer.from_folder(demo_base)
