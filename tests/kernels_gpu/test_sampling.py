"""Draws and log-probabilities in the interpreter equal the reference's, on hostile logits too.

Weights are float32 there and float64 in the reference. Where a limit or the drawn number falls
within `MARGIN` of a border, either side of it is right; everywhere else there is one answer.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from kernels import gpu, reference
from kernels.gpu.tuning import LaunchConfig

MARGIN = 1e-5
# A test's vocabulary is one block, or with the second several.
ONE_BLOCK = LaunchConfig({"BLOCK_TOKENS": 512})
SMALL_BLOCKS = LaunchConfig({"BLOCK_TOKENS": 128})
ROWS = 4


def make_logits(kind: str, num_tokens: int, generator: torch.Generator) -> Tensor:
    logits = torch.randn(ROWS, num_tokens, generator=generator) * 3
    match kind:
        case "ties":
            logits = logits.round()
        case "bfloat16":
            logits = logits.bfloat16().float()
        case "all_equal":
            logits[:] = -1.25
        case "one_hot":
            logits[:] = -torch.inf
            logits[torch.arange(ROWS), torch.arange(ROWS) * 7 % num_tokens] = 0.5
        case "masked":
            mask = torch.rand(ROWS, num_tokens, generator=generator) < 0.7
            mask[:, num_tokens // 2] = False
            logits[mask] = -torch.inf
        case "zeros":
            logits = torch.where(logits > 2, logits, torch.copysign(torch.zeros(()), logits))
    return logits


def row_parameters(rows: int = 1, **values: float) -> dict[str, Tensor]:
    """The parameters of `sample`, alike in all rows; off where nothing is said."""
    defaults = {"temperature": 1.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0, "uniform": 0.5}
    return {
        name: torch.full((rows,), value, dtype=torch.int64 if name == "top_k" else torch.float64)
        for name, value in {**defaults, **values}.items()
    }


def acceptable_ids(logits: Tensor, **values: float) -> set[int]:
    """What the reference draws when each limit is moved by MARGIN, down, not at all, or up."""
    steps = (-MARGIN, 0.0, MARGIN)
    uniforms = {min(max(values["uniform"] + step, 0.0), 1 - 2**-53) for step in steps}
    top_ps = {min(values["top_p"] + step, 1.0) for step in steps}
    min_ps = {values["min_p"] * (1 + step) for step in steps}
    if values["top_p"] == 1.0:
        top_ps = {1.0}
    return {
        int(
            reference.sample(
                logits[None],
                **row_parameters(**{**values, "uniform": u, "top_p": p, "min_p": min(m, 1.0)}),
            )
        )
        for u, p, m in itertools.product(uniforms, top_ps, min_ps)
    }


def random_values(choose: random.Random) -> dict[str, float]:
    """Limits of one row: mostly several at once, some of them off, some extreme."""
    edge = choose.choice([0.0, 1 - 2**-53])
    return {
        "temperature": choose.choice([1.0, 1.0, 0.7, 1.7, 5.0, 1e-310, 0.0]),
        "top_k": choose.choice([0, 0, 1, 5, 40, 5000]),
        "top_p": choose.choice([1.0, 1.0, 0.01, 0.5, 0.9, 0.99]),
        "min_p": choose.choice([0.0, 0.0, 0.0, 0.02, 0.3, 1.0]),
        "uniform": choose.choice([choose.random(), choose.random(), choose.random(), edge]),
    }


@contextmanager
def launched_with(config: LaunchConfig) -> Iterator[None]:
    """The interpreter's time goes by blocks of any size, so they are made to fit the test."""
    with pytest.MonkeyPatch.context() as patch:
        for name in ("SAMPLE", "LOG_PROBS"):
            patch.setattr(import_module("kernels.gpu.sampling"), name, config)
        yield


@pytest.fixture(autouse=True)
def one_block() -> Iterator[None]:
    with launched_with(ONE_BLOCK):
        yield


@settings(max_examples=40, deadline=None, derandomize=True)
@given(
    seed=st.integers(0, 2**32),
    kind=st.sampled_from(["normal", "ties", "bfloat16", "all_equal", "one_hot", "masked", "zeros"]),
    num_tokens=st.sampled_from([301, 129, 63, 2, 1]),
    config=st.sampled_from([ONE_BLOCK, SMALL_BLOCKS]),
)
def test_draws_equal_the_reference(
    seed: int,
    kind: str,
    num_tokens: int,
    config: LaunchConfig,
) -> None:
    logits = make_logits(kind, num_tokens, torch.Generator().manual_seed(seed))
    choose = random.Random(seed)
    values = [random_values(choose) for _ in range(ROWS)]
    parameters = [row_parameters(**each) for each in values]
    batch = {name: torch.cat([each[name] for each in parameters]) for name in parameters[0]}
    with launched_with(config):
        got = gpu.sample(poisoned(logits), **batch)
    assert got.dtype == torch.int64
    for row in range(ROWS):
        assert int(got[row]) in acceptable_ids(logits[row], **values[row])


def poisoned(logits: Tensor) -> Tensor:
    """The same rows, with +inf beside each in memory: a token past the vocabulary would win."""
    memory = torch.full((logits.shape[0], logits.shape[1] + 70), torch.inf)
    view = memory[:, : logits.shape[1]]
    return view.copy_(logits)


def test_the_margin_leaves_one_answer_almost_always_and_it_is_given() -> None:
    """Else the test above would let anything pass."""
    generator = torch.Generator().manual_seed(5)
    logits = torch.randn(14, 200, generator=generator) * 2
    batch = row_parameters(14, temperature=0.9, top_k=150, top_p=0.95, min_p=0.001)
    batch["uniform"] = torch.rand(14, generator=generator, dtype=torch.float64)
    exact = reference.sample(logits, **batch)
    assert torch.equal(gpu.sample(logits, **batch), exact)
    assert len(set(exact.tolist())) > 7
    alternatives = [
        acceptable_ids(row, **{name: each[index].item() for name, each in batch.items()})
        for index, row in enumerate(logits)
    ]
    assert sum(len(ids) > 1 for ids in alternatives) <= 1
    batch["uniform"] = batch["uniform"].roll(1)
    changed = gpu.sample(logits, **batch)
    wrong = [int(i) not in ids for i, ids in zip(changed, alternatives, strict=True)]
    assert sum(wrong) > 7


def drawn_ids(logits: list[float], steps: int = 10, **values: float) -> set[int]:
    rows = torch.tensor([logits]).expand(steps, -1).contiguous()
    batch = row_parameters(steps, **values)
    batch["uniform"] = (torch.arange(steps, dtype=torch.float64) + 0.5) / steps
    return set(gpu.sample(rows, **batch).tolist())


def test_truncation_keeps_ties_and_follows_its_order() -> None:
    logits = torch.tensor([0.5, 0.25, 0.15, 0.1]).log().tolist()
    assert drawn_ids(logits) == {0, 1, 2, 3}
    assert drawn_ids(logits, top_k=3) == {0, 1, 2}
    assert drawn_ids(logits, top_p=0.6) == {0, 1}
    assert drawn_ids(logits, top_p=0.6, top_k=2) == {0}, "two thirds of what top_k leaves"
    assert drawn_ids(logits, top_p=0.6, min_p=0.4) == {0}, "two thirds of what min_p leaves"
    assert drawn_ids(logits, min_p=0.26) == {0, 1, 2}
    assert drawn_ids([1.0, 3.0, 2.0, 2.0, 0.0], top_k=2) == {1, 2, 3}
    assert drawn_ids([0.0, -0.0, 0.0, -9.0], top_k=1) == {0, 1, 2}
    assert drawn_ids([0.0] * 5, top_p=0.1) == {0, 1, 2, 3, 4}


@pytest.mark.parametrize("num_tokens", [5, 129])
@pytest.mark.parametrize("filling", [torch.nan, -torch.inf, torch.inf])
def test_an_id_is_within_the_vocabulary_whatever_the_logits_hold(
    num_tokens: int, filling: float
) -> None:
    logits = torch.full((3, num_tokens), filling)
    logits[1, ::2] = 1.0
    logits[2, -1] = torch.nan
    for values in ({}, {"top_k": 2}, {"top_p": 0.5}, {"min_p": 0.5}, {"temperature": 0.0}):
        token_ids = gpu.sample(poisoned(logits), **row_parameters(3, uniform=0.99, **values))
        assert ((token_ids >= 0) & (token_ids < num_tokens)).all()


def test_a_draw_does_not_depend_on_the_batch() -> None:
    generator = torch.Generator().manual_seed(6)
    logits = torch.randn(5, 300, generator=generator)
    batch = row_parameters(5, top_p=0.9)
    batch["uniform"] = torch.rand(5, generator=generator, dtype=torch.float64)
    together = gpu.sample(logits, **batch)
    alone = [
        gpu.sample(
            logits[row : row + 1], **{name: each[row : row + 1] for name, each in batch.items()}
        )
        for row in range(5)
    ]
    assert torch.equal(torch.cat(alone), together)


@pytest.mark.parametrize("kind", ["normal", "ties", "all_equal", "masked", "zeros"])
@pytest.mark.parametrize(("num_tokens", "num_top"), [(1, 1), (97, 0), (97, 5), (301, 8)])
def test_log_probs_are_exact_and_ties_go_to_the_lower_id(
    kind: str, num_tokens: int, num_top: int
) -> None:
    logits = make_logits(kind, num_tokens, torch.Generator().manual_seed(8))
    token_ids = torch.tensor([0, num_tokens - 1, num_tokens // 2, num_tokens // 3])
    want_chosen, want_ids, want_top = reference.log_probs(logits, token_ids, num_top)
    with launched_with(SMALL_BLOCKS):
        chosen, top_ids, top = gpu.log_probs(poisoned(logits), token_ids, num_top)
    assert torch.equal(top_ids, want_ids)
    torch.testing.assert_close(chosen, want_chosen, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(top, want_top, rtol=1e-5, atol=1e-5)


def test_log_probs_of_other_logits_are_noticed() -> None:
    logits = make_logits("normal", 97, torch.Generator().manual_seed(8))
    token_ids = torch.zeros(ROWS, dtype=torch.int64)
    want = reference.log_probs(logits, token_ids, 5)
    got = gpu.log_probs(logits * 0.99, token_ids, 5)
    assert not torch.allclose(got[0], want[0], rtol=1e-5, atol=1e-5)
    assert not torch.allclose(got[2], want[2], rtol=1e-5, atol=1e-5)
