"""The forms beside LoRA: the CPU backends equal the reference, and base rows keep their bits."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from kernels.adapter_table import SiteShape
from kernels.backends import choose_backend
from kernels.interface import KernelBackend, LoraSegment, LoraSite
from tests.builders.lora_segments import SITE, segment
from tests.builders.lora_weights import random_rows, random_site

REFERENCE = choose_backend("reference")
BACKENDS = {
    "cpu": choose_backend("cpu"),
    "invariant": choose_backend("cpu", batch_invariant=True),
}
NUM_IN, NUM_OUT, VOCAB, HIDDEN = 40, 50, 30, 24
Run = Callable[[KernelBackend, Tensor, Tensor, list[LoraSegment]], None]


@pytest.fixture(params=sorted(BACKENDS))
def backend(request: pytest.FixtureRequest) -> KernelBackend:
    return BACKENDS[request.param]


def linear_site(seed: int) -> LoraSite:
    """All forms of a linear; the rows that it replaces are some, or all, of its outputs."""
    generator = torch.Generator().manual_seed(seed)
    among = NUM_OUT if seed % 2 else None
    rows = random_rows(7 if seed % 2 else NUM_OUT, NUM_IN, generator, among=among, bias=True)
    shape = SiteShape(0, NUM_IN, (NUM_OUT,))
    return random_site(shape, (seed,), generator, scale=True, bias=True, replaced=rows)


def embedding_site(seed: int) -> LoraSite:
    generator = torch.Generator().manual_seed(seed)
    rows = random_rows(9, HIDDEN, generator, among=VOCAB if seed % 2 else None)
    return random_site(SiteShape(0, VOCAB, (HIDDEN,)), (seed,), generator, replaced=rows)


def segments_of(make: Callable[[int], LoraSite]) -> list[LoraSegment]:
    """Rows 0-1 and 9 are the base's; the adapter of rows 10 and 11 leaves the site alone."""
    away = LoraSegment(10, 12, type(segment(0, 1, make(1)).weights)({}))
    return [segment(2, 7, make(3)), segment(7, 8, make(4)), segment(8, 9, make(5)), away]


BIAS = torch.randn(NUM_OUT, generator=torch.Generator().manual_seed(1))
FORMS: dict[str, tuple[Callable[[int], LoraSite], Run]] = {
    "scale_output": (
        linear_site,
        lambda ops, y, x, plan: ops.scale_output(y, None, ops.plan_lora(plan), SITE),
    ),
    "scale_output_with_bias": (
        linear_site,
        lambda ops, y, x, plan: ops.scale_output(y, BIAS.to(y.dtype), ops.plan_lora(plan), SITE),
    ),
    "add_row_bias": (
        linear_site,
        lambda ops, y, x, plan: ops.add_row_bias(y, ops.plan_lora(plan), SITE),
    ),
    "override_linear": (
        linear_site,
        lambda ops, y, x, plan: ops.override_linear(y, x, ops.plan_lora(plan), SITE),
    ),
    "replace_embedding_rows": (
        embedding_site,
        lambda ops, y, x, plan: ops.replace_embedding_rows(y, x, ops.plan_lora(plan), SITE),
    ),
    "add_embedding_lora": (
        embedding_site,
        lambda ops, y, x, plan: ops.add_embedding_lora(y, x, ops.plan_lora(plan), SITE),
    ),
}


@pytest.mark.parametrize("form", sorted(FORMS))
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_form_equals_the_reference_and_leaves_other_rows(
    backend: KernelBackend, form: str, dtype: torch.dtype
) -> None:
    make, run = FORMS[form]
    generator = torch.Generator().manual_seed(0)
    is_embedding = make is embedding_site
    base = torch.randn(13, HIDDEN if is_embedding else NUM_OUT, generator=generator).to(dtype)
    if is_embedding:
        x = torch.randint(VOCAB, (13,), generator=generator)
    else:
        x = torch.randn(13, NUM_IN, generator=generator).to(dtype)
    got, want = base.clone(), base.clone()
    run(backend, got, x, segments_of(make))
    run(REFERENCE, want, x, segments_of(make))
    assert not torch.equal(want[2:9], base[2:9]), "the form changes something"
    tolerance = 1e-5 if dtype == torch.float32 else 1e-2
    assert (got - want).abs().max().item() <= tolerance * want.abs().max().item()
    for row in (0, 1, 9, 10, 11, 12):
        assert torch.equal(got[row], base[row])


def test_scaling_the_bias_too_would_be_noticed() -> None:
    generator = torch.Generator().manual_seed(0)
    base = torch.randn(13, NUM_OUT, generator=generator)
    right, wrong = base.clone(), base.clone()
    FORMS["scale_output_with_bias"][1](REFERENCE, right, base, segments_of(linear_site))
    FORMS["scale_output"][1](REFERENCE, wrong, base, segments_of(linear_site))
    assert (right - wrong).abs().max().item() > 0.1


@pytest.mark.parametrize("form", ["add_embedding_lora", "override_linear"])
def test_invariant_rows_of_a_form_do_not_depend_on_the_batch(form: str) -> None:
    make, run = FORMS[form]
    site = make(5)
    generator = torch.Generator().manual_seed(2)
    if make is embedding_site:
        x = torch.randint(VOCAB, (37,), generator=generator)
    else:
        x = torch.randn(37, NUM_IN, generator=generator)
    width = HIDDEN if make is embedding_site else NUM_OUT
    together, alone = torch.zeros(37, width), torch.zeros(37, width)
    run(BACKENDS["invariant"], together, x, [segment(0, 37, site)])
    run(BACKENDS["invariant"], alone, x, [segment(row, row + 1, site) for row in range(37)])
    assert torch.equal(together, alone)
