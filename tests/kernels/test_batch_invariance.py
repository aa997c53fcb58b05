"""`--batch-invariant`: a row's bits do not depend on neighbours, its place, or chunk borders."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from kernels.backends import choose_backend
from kernels.interface import LoraPart, LoraSite, SequenceSpan
from tests.builders.lora_segments import SITE, segment

INVARIANT = choose_backend("cpu", batch_invariant=True)
FAST = choose_backend("cpu")


@pytest.fixture(params=[1, 2, 5], autouse=True)
def threads(request: pytest.FixtureRequest) -> object:
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield
    torch.set_num_threads(before)


def assert_rows_do_not_depend_on_the_batch(op: Callable[[Tensor], Tensor], rows: Tensor) -> None:
    together = op(rows)
    for begin, end in [(0, 1), (1, 8), (8, 37), (5, 6), (20, 37)]:
        assert torch.equal(op(rows[begin:end].clone()), together[begin:end])
    order = torch.randperm(rows.shape[0], generator=torch.Generator().manual_seed(2))
    assert torch.equal(op(rows[order]), together[order])


@pytest.mark.parametrize(("num_in", "num_out"), [(576, 960), (1536, 576), (64, 96), (576, 4097)])
def test_linear_rows_are_bitwise_independent(num_in: int, num_out: int) -> None:
    generator = torch.Generator().manual_seed(0)
    packed = INVARIANT.pack_linear(torch.randn(num_out, num_in, generator=generator))
    rows = torch.randn(37, num_in, generator=generator)
    assert_rows_do_not_depend_on_the_batch(lambda x: INVARIANT.linear(x, packed, None), rows)


@pytest.mark.parametrize("rank", [1, 5, 8, 64, 512])
def test_lora_rows_are_bitwise_independent(rank: int) -> None:
    generator = torch.Generator().manual_seed(0)
    site = LoraSite(
        torch.randn(rank, 576, generator=generator),
        (LoraPart(torch.randn(rank, 192, generator=generator).t(), (0, rank), (0, 192)),),
    )

    def op(x: Tensor) -> Tensor:
        y = torch.zeros(x.shape[0], 192)
        plan = INVARIANT.plan_lora([segment(0, x.shape[0], site)])
        INVARIANT.add_lora(y, x, plan, SITE)
        return y

    assert_rows_do_not_depend_on_the_batch(op, torch.randn(37, 576, generator=generator))


def test_norm_and_activation_rows_are_bitwise_independent() -> None:
    generator = torch.Generator().manual_seed(0)
    rows = torch.randn(37, 576, generator=generator) * 5
    gain = torch.randn(576, generator=generator)
    assert_rows_do_not_depend_on_the_batch(lambda x: INVARIANT.rms_norm(x, gain, 1e-5), rows)
    wide = torch.randn(133, 3072, generator=generator) * 4
    assert_rows_do_not_depend_on_the_batch(INVARIANT.silu_and_mul, wide)


def attention_rows(chunks: list[int], *, neighbours: bool, window: int = 0) -> Tensor:
    """Outputs of one sequence of 300 tokens, computed in `chunks`, alone or beside others."""
    generator = torch.Generator().manual_seed(4)
    num_tokens, block_size = 180, 16
    query = torch.randn(num_tokens, 9, 64, generator=generator)
    content = torch.randn(2, 3, num_tokens, 64, generator=generator)
    other = torch.randn(50, 9, 64, generator=generator)
    caches = torch.randn(2, 3, 60, block_size, 64, generator=generator)
    table = list(range(40, 59))
    caches.flatten(2, 3)[:, :, 640 : 640 + num_tokens] = content
    outputs, done = [], 0
    for size in chunks:
        spans = [SequenceSpan(0, size, done + size, table)]
        batch = query[done : done + size]
        if neighbours:
            spans = [
                SequenceSpan(0, 49, 400, list(range(25))),
                SequenceSpan(49, size, done + size, table),
                SequenceSpan(49 + size, 1, 130, list(range(25, 34))),
            ]
            batch = torch.cat([other[:49], batch, other[49:]])
        plan = INVARIANT.plan_attention(spans, block_size)
        out = INVARIANT.paged_attention(batch, caches[0], caches[1], plan, 0.125, window=window)
        outputs.append(out[49 : 49 + size] if neighbours else out)
        done += size
    return torch.cat(outputs)


@pytest.mark.parametrize("window", [0, 50])
def test_attention_is_bitwise_equal_for_prefill_decode_and_any_neighbours(window: int) -> None:
    whole = attention_rows([180], neighbours=False, window=window)
    for chunks in ([1] * 180, [7, 121, 52], [179, 1]):
        assert torch.equal(attention_rows(chunks, neighbours=False, window=window), whole)
        assert torch.equal(attention_rows(chunks, neighbours=True, window=window), whole)


def test_the_fast_backend_depends_on_the_batch_so_these_tests_can_fail() -> None:
    generator = torch.Generator().manual_seed(0)
    site = LoraSite(
        torch.randn(64, 576, generator=generator),
        (LoraPart(torch.randn(64, 192, generator=generator).t(), (0, 64), (0, 192)),),
    )
    rows = torch.randn(128, 576, generator=generator)
    together, alone = torch.zeros(128, 192), torch.zeros(128, 192)
    whole, single = [segment(0, 128, site)], [segment(row, row + 1, site) for row in range(128)]
    FAST.add_lora(together, rows, FAST.plan_lora(whole), SITE)
    FAST.add_lora(alone, rows, FAST.plan_lora(single), SITE)
    assert not torch.equal(together, alone)
    torch.testing.assert_close(together, alone, atol=1e-2, rtol=1e-4)
