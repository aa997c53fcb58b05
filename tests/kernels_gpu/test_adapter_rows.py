"""The forms beside LoRA in the interpreter equal float64, and leave other rows' bits."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from kernels.adapter_table import PageFormat, SiteKey, SiteShape
from kernels.gpu.adapter_rows import (
    add_embedding_lora,
    add_row_bias,
    override_linear,
    replace_embedding_rows,
    scale_output,
)
from kernels.interface import LoraSite
from lora.sites import EMBED_TOKENS
from tests.builders.lora_pool import Owners, place_adapters, poisoned_plan, segments_of
from tests.builders.lora_weights import random_rows, random_site

LINEAR: SiteKey = (0, "o_proj")
HEAD: SiteKey = (-1, "lm_head")
TOLERANCE = {torch.float32: 1e-5, torch.float16: 2e-3, torch.bfloat16: 5e-3}
DTYPES = sorted(TOLERANCE, key=str)
NUM_IN, NUM_OUT, VOCAB, HIDDEN = 100, 300, 600, 300
# Adapter 0 has every form; 1 has every form, but replaces all rows; 2 has LoRA alone; 3 nothing
# at these sites.
OWNERS: Owners = [(None, 1), (0, 18), (1, 3), (None, 1), (2, 2), (3, 2), (1, 1), (None, 1)]
HAS_FORMS = (0, 1)


def page_format(dtype: torch.dtype) -> PageFormat:
    shapes = {
        LINEAR: SiteShape(0, NUM_IN, (NUM_OUT,)),
        EMBED_TOKENS: SiteShape(1, VOCAB, (HIDDEN,)),
        HEAD: SiteShape(2, NUM_IN, (NUM_OUT,)),
    }
    return PageFormat(shapes, 4096, dtype.itemsize)


def make_adapters(form: PageFormat) -> list[dict[SiteKey, LoraSite]]:
    generator = torch.Generator().manual_seed(5)
    adapters: list[dict[SiteKey, LoraSite]] = []
    for rank, outputs, tokens in ((5, 70, 40), (40, NUM_OUT, VOCAB)):
        among = NUM_OUT if outputs < NUM_OUT else None
        rows = random_rows(outputs, NUM_IN, generator, among=among, bias=True)
        token_rows = random_rows(tokens, HIDDEN, generator, among=VOCAB if tokens < VOCAB else None)
        adapters.append(
            {
                LINEAR: random_site(
                    form.shapes[LINEAR], (rank,), generator, scale=True, bias=True, replaced=rows
                ),
                EMBED_TOKENS: random_site(
                    form.shapes[EMBED_TOKENS], (rank,), generator, replaced=token_rows
                ),
            }
        )
    adapters.append({LINEAR: random_site(form.shapes[LINEAR], (3,), generator)})
    adapters.append({HEAD: random_site(form.shapes[HEAD], (3,), generator, bias=True)})
    return adapters


class Batch:
    """Rows of `OWNERS` with NaN in every row of the base, and their adapters in a pool."""

    def __init__(self, dtype: torch.dtype, width: int) -> None:
        form = page_format(dtype)
        generator = torch.Generator().manual_seed(1)
        self.adapters = make_adapters(form)
        self.owners = [owner for owner, count in OWNERS for _ in range(count)]
        num_rows = len(self.owners)
        self.x = torch.randn(num_rows, NUM_IN, generator=generator).to(dtype)
        self.y = torch.randn(num_rows, width, generator=generator).to(dtype)
        self.bias = torch.randn(width, generator=generator).to(dtype) * 3
        self.ids = torch.randint(VOCAB, (num_rows,), generator=generator)
        replaced = self.adapters[0][EMBED_TOKENS].replaced
        assert replaced is not None and replaced.ids is not None
        # The first, some in the midst and the last of the ids that adapter 0 replaces.
        self.ids[1:8] = replaced.ids[[0, 1, 7, 19, 20, 38, 39]]
        for row, owner in enumerate(self.owners):
            if owner is None:
                self.x[row] = self.y[row] = torch.nan
        placed = place_adapters(self.adapters, form, dtype)
        self.plan = poisoned_plan(segments_of(OWNERS, placed))

    def site(self, row: int, key: SiteKey) -> LoraSite | None:
        owner = self.owners[row]
        return None if owner is None else self.adapters[owner].get(key)

    def check(self, got: Tensor, want: Tensor, changed: set[int]) -> None:
        """Rows in `changed` are near `want`; all others have the bits that they had."""
        rows = sorted(changed)
        scale = want[rows].abs().max().item()
        assert torch.isfinite(got[rows].float()).all()
        error = (got[rows].double() - want[rows]).abs().max().item()
        assert error <= TOLERANCE[got.dtype] * scale
        for row in range(got.shape[0]):
            if row not in changed:
                assert torch.equal(got[row].view(torch.uint8), self.y[row].view(torch.uint8))


def wide(tensor: Tensor, dtype: torch.dtype) -> Tensor:
    """As the pages hold it, in float64."""
    return tensor.to(dtype).double()


def scaled(batch: Batch, bias: Tensor | None) -> tuple[Tensor, set[int]]:
    want, changed = batch.y.double(), set()
    for row in range(want.shape[0]):
        if (site := batch.site(row, LINEAR)) is not None and site.scale is not None:
            kept = 0.0 if bias is None else bias.double()
            want[row] = (want[row] - kept) * site.scale.double() + kept
            changed.add(row)
    return want, changed


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("has_bias", [False, True])
def test_scale_output_spares_the_bias(dtype: torch.dtype, has_bias: bool) -> None:
    batch = Batch(dtype, NUM_OUT)
    bias = batch.bias if has_bias else None
    got = batch.y.clone()
    scale_output(got, bias, batch.plan, LINEAR)
    batch.check(got, *scaled(batch, bias))


def test_scaling_the_bias_too_would_be_noticed() -> None:
    batch = Batch(torch.bfloat16, NUM_OUT)
    got = batch.y.clone()
    scale_output(got, None, batch.plan, LINEAR)
    with pytest.raises(AssertionError):
        batch.check(got, *scaled(batch, batch.bias))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_add_row_bias(dtype: torch.dtype) -> None:
    batch = Batch(dtype, NUM_OUT)
    got, want, changed = batch.y.clone(), batch.y.double(), set()
    add_row_bias(got, batch.plan, LINEAR)
    for row in range(got.shape[0]):
        if (site := batch.site(row, LINEAR)) is not None and site.bias is not None:
            want[row] += site.bias.double()
            changed.add(row)
    batch.check(got, want, changed)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_replaced_embedding_rows_are_copied_and_no_others(dtype: torch.dtype) -> None:
    batch = Batch(dtype, HIDDEN)
    got, want, changed = batch.y.clone(), batch.y.double(), set()
    replace_embedding_rows(got, batch.ids, batch.plan, EMBED_TOKENS)
    for row, token_id in enumerate(batch.ids.tolist()):
        if (site := batch.site(row, EMBED_TOKENS)) is None or site.replaced is None:
            continue
        ids = site.replaced.ids
        index = [token_id] if ids is None else (ids == token_id).nonzero().flatten().tolist()
        if index:
            want[row] = wide(site.replaced.rows[index[0]], dtype)
            changed.add(row)
    assert 7 <= len(changed) < sum(owner in HAS_FORMS for owner in batch.owners)
    batch.check(got, want, changed)
    assert torch.equal(got[sorted(changed)].double(), want[sorted(changed)]), "a copy is exact"


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_add_embedding_lora(dtype: torch.dtype) -> None:
    batch = Batch(dtype, HIDDEN)
    got, want, changed = batch.y.clone(), batch.y.double(), set()
    add_embedding_lora(got, batch.ids, batch.plan, EMBED_TOKENS)
    for row, token_id in enumerate(batch.ids.tolist()):
        if (site := batch.site(row, EMBED_TOKENS)) is not None:
            want[row] += wide(site.parts[0].b, dtype) @ wide(site.a[:, token_id], dtype)
            changed.add(row)
    batch.check(got, want, changed)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_override_linear_writes_the_replaced_outputs_alone(dtype: torch.dtype) -> None:
    batch = Batch(dtype, NUM_OUT)
    got, want, changed = batch.y.clone(), batch.y.double(), set()
    override_linear(got, batch.x, batch.plan, LINEAR)
    for row in range(got.shape[0]):
        if (site := batch.site(row, LINEAR)) is None or (rows := site.replaced) is None:
            continue
        assert rows.bias is not None
        values = wide(rows.rows, dtype) @ batch.x[row].double() + rows.bias.double()
        outputs = torch.arange(NUM_OUT) if rows.ids is None else rows.ids
        want[row, outputs] = values
        kept = torch.ones(NUM_OUT, dtype=torch.bool)
        kept[outputs] = False
        assert torch.equal(got[row, kept], batch.y[row, kept])
        changed.add(row)
    batch.check(got, want, changed)


def test_no_form_launches_where_no_adapter_has_it() -> None:
    batch = Batch(torch.bfloat16, NUM_OUT)
    got = batch.y.clone()
    assert "lm_head" not in batch.plan.shape.scaled
    scale_output(got, None, batch.plan, HEAD)
    override_linear(got, batch.x, batch.plan, HEAD)
    assert torch.equal(got.view(torch.uint8), batch.y.view(torch.uint8))
