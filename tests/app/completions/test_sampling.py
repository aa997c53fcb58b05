from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.completions.sampling import choice_seed, sampling_params
from app.completions.schemas import CompletionBody
from engine.messages import SamplingParams

seeds = st.integers(-(2**63), 2**63 - 1)


def params(choice: int = 0, **fields: Any) -> SamplingParams:
    body = CompletionBody.model_validate({"model": "m", "prompt": "p", **fields})
    return sampling_params(body, choice=choice, max_tokens=5, stop_token_ids=[2])


def test_knobs_default_to_openais() -> None:
    found = params(seed=1)
    expected = SamplingParams(seed=1, max_tokens=5, temperature=1.0, stop_token_ids=(2,))
    assert found == expected


@pytest.mark.parametrize(
    ("fields", "temperature", "top_p", "top_k"),
    [
        ({"temperature": 0}, 0.0, 1.0, 0),
        ({"temperature": 0.5, "top_p": 0.9, "top_k": 20}, 0.5, 0.9, 20),
        ({"top_k": -1}, 1.0, 1.0, 0),
        ({"top_p": 0}, 0.0, 1.0, 0),
    ],
)
def test_knobs_reach_the_engine(
    fields: dict[str, Any], temperature: float, top_p: float, top_k: int
) -> None:
    found = params(**fields)
    assert (found.temperature, found.top_p, found.top_k) == (temperature, top_p, top_k)


def test_a_seed_is_drawn_where_none_is_sent_and_anew_each_time() -> None:
    assert len({params().seed for _ in range(16)}) == 16


@settings(deadline=None)
@given(seed=seeds)
def test_every_choice_has_a_seed_of_its_own_that_the_engine_can_carry(seed: int) -> None:
    derived = [choice_seed(seed, choice) for choice in range(8)]
    assert len(set(derived)) == 8
    assert all(0 <= value < 2**63 for value in derived)
    assert derived == [choice_seed(seed, choice) for choice in range(8)]


def test_the_first_choice_of_many_is_the_only_choice_of_one() -> None:
    assert params(seed=42, n=1).seed == params(seed=42, n=8).seed == 42
    assert params(choice=1, seed=42, n=2).seed == params(choice=1, seed=42, n=8).seed
