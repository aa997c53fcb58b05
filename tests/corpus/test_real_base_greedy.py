"""SmolLM2 with the demo's adapters: as many greedy tokens as an answer has, against PEFT's."""

from __future__ import annotations

import pytest

from tests.engine.test_demo_base_parity import (
    firms,
    harness,
    refs,
    test_greedy_tokens_equal_transformers_and_peft,
)

__all__ = ["firms", "harness", "refs", "test_greedy_tokens_equal_transformers_and_peft"]


@pytest.fixture
def num_greedy_tokens() -> int:
    return 200
