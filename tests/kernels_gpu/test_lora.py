"""Shrink and expand in the interpreter equal float64, for every popularity, rank and shape."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from triton.runtime.interpreter import InterpreterBuilder, TensorHandle

from kernels.adapter_table import PageFormat, SiteKey, SiteShape
from kernels.gpu.lora import add_lora, plan_lora, plan_lora_invariant
from kernels.interface import LoraSite
from tests.builders.lora_pool import Owners, place_adapters, poisoned_plan, segments_of
from tests.builders.lora_weights import random_site

SITE: SiteKey = (0, "qkv")
OTHER: SiteKey = (1, "qkv")
TOLERANCE = {torch.float32: 1e-5, torch.float16: 2e-3, torch.bfloat16: 5e-3}
DTYPES = sorted(TOLERANCE, key=str)
# Inputs and outputs are no multiples of a block; the parts have widths of their own.
NUM_IN, WIDTHS = 300, (200, 72, 40)
RANKS = [(1, 1, 1), (8, 0, 16), (3, 10, 3), (16, 16, 16), (0, 0, 5), (64, 100, 1), (512, 8, 0)]
LEAVES_ALONE = len(RANKS)
"""Index of an adapter that has weights at `OTHER` and none at `SITE`."""
POPULARITY: dict[str, Owners] = {
    "distinct": [(index, 1) for index in range(6)],
    "uniform": [(index, 3) for index in range(4)],
    "zipf": [(0, 8), (1, 4), (2, 2), (3, 1), (4, 1)],
    "identical": [(2, 20)],
    "skewed": [(0, 19), (6, 1)],
    "base_between": [(None, 1), (0, 1), (None, 2), (3, 2), (None, 1)],
    "leaves_alone": [(1, 2), (LEAVES_ALONE, 3), (2, 1)],
    "empty_segment": [(1, 2), (3, 0), (2, 1)],
    "prompts": [(1, 70), (None, 2), (2, 33)],
}


def page_format(
    dtype: torch.dtype, num_in: int = NUM_IN, widths: tuple[int, ...] = WIDTHS
) -> PageFormat:
    shapes = {SITE: SiteShape(0, num_in, widths), OTHER: SiteShape(1, num_in, widths)}
    return PageFormat(shapes, 8192, dtype.itemsize)


def make_adapters(
    ranks: list[tuple[int, ...]], form: PageFormat, seed: int = 0
) -> list[dict[SiteKey, LoraSite]]:
    """One adapter for each entry of `ranks`, and last the one that leaves `SITE` alone."""
    generator = torch.Generator().manual_seed(seed)
    shape = form.shapes[SITE]
    adapters = [{SITE: random_site(shape, each, generator)} for each in ranks]
    return [*adapters, {OTHER: random_site(shape, (4,) * len(shape.widths), generator)}]


def make_rows(
    owners: Owners, num_in: int, num_out: int, dtype: torch.dtype
) -> tuple[Tensor, Tensor]:
    """x and y; all of the base's rows are NaN in both."""
    generator = torch.Generator().manual_seed(3)
    num_rows = sum(count for _, count in owners)
    x = torch.randn(num_rows, num_in, generator=generator).to(dtype)
    y = torch.randn(num_rows, num_out, generator=generator).to(dtype)
    start = 0
    for owner, count in owners:
        if owner is None:
            x[start : start + count] = torch.nan
            y[start : start + count] = torch.nan
        start += count
    return x, y


def float64_result(
    x: Tensor, y: Tensor, owners: Owners, adapters: list[dict[SiteKey, LoraSite]]
) -> Tensor:
    """From the weights as the pages hold them: rounded to the dtype."""
    want, start = y.double(), 0
    for owner, count in owners:
        rows = slice(start, start + count)
        start += count
        site = adapters[owner].get(SITE) if owner is not None else None
        for part in site.parts if site is not None else ():
            a = site.a[slice(*part.rank)].to(x.dtype).double()
            b = part.b.to(x.dtype).double()
            want[rows, slice(*part.out)] += x[rows].double() @ a.t() @ b.t()
    return want


def assert_close(got: Tensor, want: Tensor, owners: Owners) -> None:
    """Within the tolerance, relative to the scale of the rows that an adapter changes."""
    has_adapter = torch.cat([torch.full((count,), owner is not None) for owner, count in owners])
    assert torch.isfinite(got[has_adapter].float()).all()
    error = (got.double() - want)[has_adapter].abs().max().item()
    assert error <= TOLERANCE[got.dtype] * want[has_adapter].abs().max().item()


def same_bits(left: Tensor, right: Tensor) -> bool:
    return torch.equal(left.contiguous().view(torch.uint8), right.contiguous().view(torch.uint8))


@pytest.mark.parametrize(
    ("popularity", "dtype"),
    [
        *((popularity, torch.bfloat16) for popularity in sorted(POPULARITY)),
        *((popularity, torch.float32) for popularity in ("distinct", "prompts")),
        *((popularity, torch.float16) for popularity in ("uniform", "base_between")),
    ],
    ids=str,
)
def test_add_lora_equals_float64(popularity: str, dtype: torch.dtype) -> None:
    owners = POPULARITY[popularity]
    form = page_format(dtype)
    adapters = make_adapters(RANKS, form)
    placed = place_adapters(adapters, form, dtype)
    x, y = make_rows(owners, NUM_IN, sum(WIDTHS), dtype)
    got = y.clone()
    add_lora(got, x, poisoned_plan(segments_of(owners, placed)), SITE)
    assert_close(got, float64_result(x, y, owners, adapters), owners)
    start = 0
    for owner, count in owners:
        rows = slice(start, start + count)
        assert same_bits(got[rows], y[rows]) == (count == 0 or owner in (None, LEAVES_ALONE))
        start += count


def test_a_result_for_another_adapter_would_be_noticed() -> None:
    owners, swapped = [(1, 2), (2, 2)], [(2, 2), (1, 2)]
    form = page_format(torch.bfloat16)
    adapters = make_adapters(RANKS, form)
    placed = place_adapters(adapters, form, torch.bfloat16)
    x, y = make_rows(owners, NUM_IN, sum(WIDTHS), torch.bfloat16)
    got = y.clone()
    add_lora(got, x, poisoned_plan(segments_of(swapped, placed)), SITE)
    with pytest.raises(AssertionError):
        assert_close(got, float64_result(x, y, owners, adapters), owners)


def test_an_unmasked_read_beyond_a_vector_would_be_noticed() -> None:
    """Without a NaN in every gap, reading one would go unseen."""
    form = page_format(torch.bfloat16)
    (adapter, *_) = place_adapters(make_adapters([(3, 3, 3)], form), form, torch.bfloat16)
    assert torch.isnan(adapter.pool.view(torch.bfloat16).float()).any(dim=1).all()


@settings(max_examples=12)
@given(
    ranks=st.lists(
        st.tuples(*[st.one_of(st.just(0), st.integers(1, 20), st.integers(21, 256))] * 2),
        min_size=1,
        max_size=3,
    ),
    lengths=st.lists(st.integers(0, 21), min_size=3, max_size=3),
    num_in=st.integers(1, 700),
    widths=st.tuples(st.integers(1, 400), st.integers(1, 200)),
    dtype=st.sampled_from(DTYPES),
    tile_rows=st.sampled_from([None, 16, 64]),
)
def test_add_lora_equals_float64_for_any_shape(
    ranks: list[tuple[int, ...]],
    lengths: list[int],
    num_in: int,
    widths: tuple[int, int],
    dtype: torch.dtype,
    tile_rows: int | None,
) -> None:
    form = page_format(dtype, num_in, widths)
    adapters = make_adapters(ranks, form)
    placed = place_adapters(adapters, form, dtype)
    owners: Owners = [(None, 1), *zip(range(len(ranks)), lengths, strict=False), (None, 1)]
    x, y = make_rows(owners, num_in, sum(widths), dtype)
    got = y.clone()
    add_lora(got, x, poisoned_plan(segments_of(owners, placed), tile_rows=tile_rows), SITE)
    if sum(lengths[: len(ranks)]):
        assert_close(got, float64_result(x, y, owners, adapters), owners)
    assert same_bits(got[[0, -1]], y[[0, -1]])


def test_two_runs_have_the_same_bits() -> None:
    owners = POPULARITY["zipf"]
    form = page_format(torch.bfloat16)
    placed = place_adapters(make_adapters(RANKS, form), form, torch.bfloat16)
    x, y = make_rows(owners, NUM_IN, sum(WIDTHS), torch.bfloat16)
    results = []
    for _ in range(2):
        results.append(y.clone())
        add_lora(results[-1], x, plan_lora(segments_of(owners, placed)), SITE)
    assert same_bits(*results)


def test_outputs_may_be_wider_than_the_compute_dtype() -> None:
    """The language model head adds to float32 logits."""
    owners = POPULARITY["uniform"]
    form = page_format(torch.bfloat16)
    adapters = make_adapters(RANKS, form)
    placed = place_adapters(adapters, form, torch.bfloat16)
    x, y = make_rows(owners, NUM_IN, sum(WIDTHS), torch.bfloat16)
    got = y.float()
    add_lora(got, x, poisoned_plan(segments_of(owners, placed)), SITE)
    want = float64_result(x, y, owners, adapters)
    assert (got.double() - want).abs().max().item() <= 5e-3 * want.abs().max().item()


@pytest.fixture
def rows_of_a_product_are_alike(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a tensor core. The interpreter's product is a BLAS's, whose last rows of a tile go
    through code of their own and may differ in their last bits."""

    def create_dot(
        self: object, a: TensorHandle, b: TensorHandle, acc: TensorHandle, *_: object
    ) -> TensorHandle:
        rows = [row[None] @ b.data for row in a.data]
        return TensorHandle(np.concatenate(rows) + acc.data, acc.dtype.scalar)

    monkeypatch.setattr(InterpreterBuilder, "create_dot", create_dot)


def test_invariant_rows_do_not_depend_on_their_neighbours(
    rows_of_a_product_are_alike: None,
) -> None:
    """Alone, beside other adapters, in the midst of many rows: the same bits."""
    num_in, owners = 1100, [(4, 20), (0, 1), (3, 2)]
    form = page_format(torch.float32, num_in)
    placed = place_adapters(make_adapters(RANKS, form), form, torch.float32)
    x, y = make_rows(owners, num_in, sum(WIDTHS), torch.float32)
    together = y.clone()
    add_lora(together, x, plan_lora_invariant(segments_of(owners, placed)), SITE)
    start = 0
    for owner, count in owners:
        for row in {start, start + count // 2, start + count - 1}:
            alone = y[row : row + 1].clone()
            plan = plan_lora_invariant(segments_of([(owner, 1)], placed))
            add_lora(alone, x[row : row + 1], plan, SITE)
            assert same_bits(alone[0], together[row])
        start += count


def test_other_splits_have_other_bits_so_the_invariant_test_can_fail(
    rows_of_a_product_are_alike: None,
) -> None:
    num_in = 1100
    form = page_format(torch.float32, num_in)
    placed = place_adapters(make_adapters(RANKS, form), form, torch.float32)
    x, y = make_rows([(3, 1)], num_in, sum(WIDTHS), torch.float32)
    results = []
    for plan in (plan_lora, plan_lora_invariant):
        results.append(y.clone())
        add_lora(results[-1], x, plan(segments_of([(3, 1)], placed)), SITE)
    assert not same_bits(*results)
