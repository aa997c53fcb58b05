"""SmolLM2 with the demo's adapters: more questions and longer answers than `make test` asks for."""

from __future__ import annotations

import pytest

from tests.engine.test_demo_base_parity import (
    firms,
    harness,
    refs,
    solo,
    test_greedy_tokens_equal_transformers_and_peft,
    test_logits_of_the_demo_adapters_equal_peft_in_a_mixed_batch,
    test_no_answer_depends_on_its_neighbours_or_is_anothers,
)

__all__ = [
    "firms",
    "harness",
    "refs",
    "solo",
    "test_greedy_tokens_equal_transformers_and_peft",
    "test_logits_of_the_demo_adapters_equal_peft_in_a_mixed_batch",
    "test_no_answer_depends_on_its_neighbours_or_is_anothers",
]


@pytest.fixture(scope="module")
def num_questions() -> int:
    return 4


@pytest.fixture
def num_greedy_tokens() -> int:
    return 100
