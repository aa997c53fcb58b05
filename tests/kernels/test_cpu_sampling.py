"""From logits to tokens: the CPU backend equals the reference, and both what the ops promise."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from kernels.backends import choose_backend

REFERENCE = choose_backend("reference")
CPU = choose_backend("cpu")


def row_parameters(rows: int, **values: float) -> dict[str, Tensor]:
    """The parameters of `sample`, alike in all rows; off where nothing is said."""
    defaults = {"temperature": 1.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0, "uniform": 0.5}
    return {
        name: torch.full((rows,), value, dtype=torch.int64 if name == "top_k" else torch.float64)
        for name, value in {**defaults, **values}.items()
    }


@settings(max_examples=80, deadline=None, derandomize=True)
@given(
    seed=st.integers(0, 1000),
    temperature=st.sampled_from([0.0, 1e-310, 0.3, 1.0, 1.7]),
    top_k=st.sampled_from([0, 1, 2, 5, 400]),
    top_p=st.sampled_from([0.01, 0.5, 0.9, 1.0]),
    min_p=st.sampled_from([0.0, 0.0, 0.02, 0.3, 1.0]),
    uniform=st.floats(0, 1, exclude_max=True),
    ties=st.booleans(),
)
def test_sample_equals_reference(
    seed: int,
    temperature: float,
    top_k: int,
    top_p: float,
    min_p: float,
    uniform: float,
    ties: bool,
) -> None:
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn(4, 300, generator=generator) * 3
    if ties:
        logits = logits.round()
    parameters = row_parameters(
        4, temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p, uniform=uniform
    )
    got = CPU.sample(logits, **parameters)
    assert got.tolist() == REFERENCE.sample(logits, **parameters).tolist()


@pytest.mark.parametrize("backend", [REFERENCE, CPU], ids=["reference", "cpu"])
def test_min_p_cuts_relative_to_the_likeliest_and_before_top_p(backend: object) -> None:
    logits = torch.tensor([[0.5, 0.25, 0.15, 0.1]]).log()

    def drawn(**values: float) -> set[int]:
        tokens = [
            backend.sample(logits, **row_parameters(1, uniform=u / 40, **values)).item()
            for u in range(40)
        ]
        return set(tokens)

    assert drawn() == {0, 1, 2, 3}
    assert drawn(min_p=0.26) == {0, 1, 2}
    assert drawn(min_p=0.4) == {0, 1}
    assert drawn(min_p=1.0) == {0}
    assert drawn(top_p=0.6) == {0, 1}
    assert drawn(top_p=0.6, min_p=0.4) == {0}, "two thirds of what min_p leaves"


@pytest.mark.parametrize("seed", range(4))
def test_penalties_equal_reference(seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn(3, 129, generator=generator) * 4
    logits[0, 5] = -torch.inf
    counts = torch.randint(0, 4, (3, 129), generator=generator, dtype=torch.int32)
    seen = (counts > 0) | (torch.rand(3, 129, generator=generator) < 0.3)
    parameters = (
        torch.tensor([1.0, 1.3, 0.7]),
        torch.tensor([0.0, 0.5, -1.5]),
        torch.tensor([0.0, 1.0, 0.25]),
    )
    got, want = logits.clone(), logits.clone()
    CPU.apply_penalties(got, counts, seen, *parameters)
    REFERENCE.apply_penalties(want, counts, seen, *parameters)
    assert torch.equal(got, want)
    assert torch.equal(got[0], logits[0]), "penalties that are off change nothing"
    assert not torch.equal(got[1], logits[1])


def test_penalties_of_a_known_case() -> None:
    logits = torch.tensor([[2.0, -2.0, 2.0, 1.0]])
    counts = torch.tensor([[3, 0, 0, 1]], dtype=torch.int32)
    seen = torch.tensor([[True, True, False, True]])
    CPU.apply_penalties(
        logits, counts, seen, torch.tensor([2.0]), torch.tensor([0.5]), torch.tensor([0.25])
    )
    assert logits.tolist() == [[2 / 2 - 3 * 0.5 - 0.25, -2 * 2, 2, 1 / 2 - 0.5 - 0.25]]


@pytest.mark.parametrize("num_top", [0, 1, 5, 97])
@pytest.mark.parametrize("ties", [False, True])
def test_log_probs_equal_reference_and_order_ties_by_id(num_top: int, ties: bool) -> None:
    generator = torch.Generator().manual_seed(3)
    logits = torch.randn(4, 97, generator=generator) * 3
    if ties:
        logits = logits.round()
        logits[3] = 1.5
    token_ids = torch.tensor([0, 96, 40, 7])
    got = CPU.log_probs(logits, token_ids, num_top)
    want = REFERENCE.log_probs(logits, token_ids, num_top)
    for mine, theirs in zip(got, want, strict=True):
        assert (mine.shape, mine.dtype) == (theirs.shape, theirs.dtype)
    assert torch.equal(got[1], want[1])
    torch.testing.assert_close(got[0], want[0])
    torch.testing.assert_close(got[2], want[2])
    if ties:
        assert got[1][3].tolist() == list(range(num_top))
