"""An adapter in pages: whole vectors, aligned, little waste, and all of it read back."""

from __future__ import annotations

import random
from itertools import pairwise

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from kernels import adapter_table as words
from kernels.adapter_table import UNIT_BYTES, PageFormat, SiteKey
from kernels.interface import LoraSite
from lora.base_spec import MODULES
from lora.layout import AdapterLayout, page_format, plan_layout, uniform_content
from lora.pages import build_pages, build_table, content_of, read_group
from lora.sites import EMBED_TOKENS, LM_HEAD
from tests.builders.lora_weights import (
    base_spec,
    llama_3_8b,
    random_rows,
    random_site,
    weights_of,
)

MIB = 1 << 20
ATTENTION = tuple(name for name in MODULES if name.startswith("self_attn"))
QUERY_VALUE = ("self_attn.q_proj", "self_attn.v_proj")


def every_vector(layout: AdapterLayout) -> list[tuple[int, int]]:
    """(begin, end) in bytes from the start of page 0, of every vector."""
    spans = []
    for group in layout.groups:
        for index, place in enumerate(group.places.tolist()):
            begin = index * group.rows_per_vector
            rows = min(group.rows_per_vector, group.num_rows - begin)
            spans.append((place, place + rows * group.row_stride))
    return sorted(spans)


def assert_well_placed(layout: AdapterLayout) -> None:
    page_bytes = layout.format.page_bytes
    spans = every_vector(layout)
    for begin, end in spans:
        assert begin % UNIT_BYTES == 0
        assert begin // page_bytes == (end - 1) // page_bytes, "a vector straddles a page"
    for (_, end), (begin, _) in pairwise(spans):
        assert end <= begin, "vectors overlap"
    assert spans[-1][1] <= layout.num_pages * page_bytes


@pytest.mark.parametrize("modules", [MODULES, ATTENTION, QUERY_VALUE])
@pytest.mark.parametrize("rank", [1, 8, 10, 64, 512])
def test_no_vector_straddles_a_page_at_llama_3_8b(rank: int, modules: tuple[str, ...]) -> None:
    base = llama_3_8b()
    assert_well_placed(
        plan_layout(uniform_content(base, modules, rank), page_format(base, 2 * MIB, 2))
    )


def test_a_misplaced_vector_would_be_noticed() -> None:
    base = llama_3_8b()
    layout = plan_layout(uniform_content(base, MODULES, 8), page_format(base, 2 * MIB, 2))
    layout.groups[0].places[0] += 2 * MIB - UNIT_BYTES
    with pytest.raises(AssertionError):
        assert_well_placed(layout)


def test_waste_is_under_4_percent_over_a_realistic_mix_of_ranks() -> None:
    """Most adapters are small; what counts is the share of all pages that holds nothing."""
    base = llama_3_8b()
    form = page_format(base, 2 * MIB, 2)
    mix = [(8, QUERY_VALUE, 15), (16, QUERY_VALUE, 10), (16, ATTENTION, 15), (8, MODULES, 10)]
    mix += [(16, MODULES, 25), (32, MODULES, 12), (64, MODULES, 10), (128, MODULES, 3)]
    used = taken = 0
    for rank, modules, share in mix:
        layout = plan_layout(uniform_content(base, modules, rank), form)
        used += share * layout.num_bytes
        taken += share * layout.num_pages * form.page_bytes
    assert 1 - used / taken < 0.04


def test_pages_cost_the_sum_of_true_ranks() -> None:
    base = llama_3_8b()
    form = page_format(base, 2 * MIB, 2)
    per_rank = (
        4 * (sum(sum(shape) for shape in base.linear_modules().values()) * base.num_layers) // 2
    )
    for rank in (1, 7, 16, 100):
        layout = plan_layout(uniform_content(base, MODULES, rank), form)
        assert layout.num_bytes == rank * per_rank


def test_a_vector_longer_than_a_page_is_refused() -> None:
    base = base_spec(hidden_size=5000)
    with pytest.raises(ValueError, match="does not fit"):
        plan_layout(uniform_content(base, MODULES, 1), page_format(base, 4096, 2))


DTYPES = {torch.float32: 4, torch.bfloat16: 2}
site_ranks = st.one_of(st.just(0), st.integers(1, 40))


@settings(max_examples=30, deadline=None, derandomize=True)
@given(
    seed=st.integers(0, 1000),
    ranks=st.lists(st.tuples(site_ranks, site_ranks, site_ranks), min_size=1, max_size=3),
    dtype=st.sampled_from(sorted(DTYPES, key=str)),
    page_bytes=st.sampled_from([4096, 12288, 65536]),
    forms=st.booleans(),
)
def test_weights_are_read_back_from_the_pool_through_the_table(
    seed: int,
    ranks: list[tuple[int, int, int]],
    dtype: torch.dtype,
    page_bytes: int,
    forms: bool,
) -> None:
    base = base_spec()
    form = page_format(base, page_bytes, dtype.itemsize)
    generator = torch.Generator().manual_seed(seed)
    names = ["self_attn.qkv_proj", "self_attn.o_proj", "mlp.gate_up_proj"]
    sites: dict[SiteKey, LoraSite] = {}
    for layer, name in enumerate(names[: len(ranks)]):
        key = (layer % base.num_layers, name)
        shape = form.shapes[key]
        sites[key] = random_site(
            shape, ranks[layer][: len(shape.widths)], generator, scale=forms, bias=forms
        )
    if forms:
        sites[EMBED_TOKENS] = random_site(
            form.shapes[EMBED_TOKENS],
            (5,),
            generator,
            replaced=random_rows(9, base.hidden_size, generator, among=base.vocab_size),
        )
        rows = random_rows(base.vocab_size, base.hidden_size, generator, bias=True)
        sites[LM_HEAD] = random_site(form.shapes[LM_HEAD], (3,), generator, replaced=rows)
    weights = weights_of(sites)
    layout = plan_layout(content_of(weights, form.shapes), form)
    if not layout.groups:
        return
    assert_well_placed(layout)
    pages = build_pages(weights, layout, dtype)
    page_ids = random.Random(seed).sample(range(layout.num_pages + 7), layout.num_pages)
    pool = torch.full((layout.num_pages + 7, page_bytes), 0xFF, dtype=torch.uint8)
    pool[page_ids] = pages
    reader = PoolReader(pool, build_table(layout, page_ids), form, dtype)
    for key, site in sites.items():
        assert_equal_site(reader, key, site, dtype)
    for group in layout.groups:
        assert torch.isfinite(read_group(pages, group, dtype).float()).all()


class PoolReader:
    """Reads an adapter as a kernel does: by the words of its table, from the pool's bytes."""

    def __init__(
        self, pool: torch.Tensor, table: torch.Tensor, form: PageFormat, dtype: torch.dtype
    ) -> None:
        self._pool = pool.view(-1)
        self._table = table.tolist()
        self.form = form
        self._dtype = dtype

    def header(self, key: SiteKey) -> list[int]:
        begin = self.form.shapes[key].index * words.HEADER_WORDS
        return self._table[begin : begin + words.HEADER_WORDS]

    def vector(self, word: int, length: int, dtype: torch.dtype, skip: int = 0) -> torch.Tensor:
        begin = self._table[word] * UNIT_BYTES + skip
        return self._pool[begin : begin + length * dtype.itemsize].view(dtype)

    def pieces(self, word: int, length: int, dtype: torch.dtype) -> torch.Tensor:
        size = self.form.piece_columns
        return torch.cat(
            [
                self.vector(word + index, min(size, length - begin), dtype)
                for index, begin in enumerate(range(0, length, size))
            ]
        )

    def matrix(self, record: int, length: int) -> torch.Tensor:
        words_of = self._table[record : record + words.MATRIX_WORDS]
        rows = []
        for row in range(words_of[words.NUM_ROWS]):
            run, index = divmod(row, words_of[words.ROWS_PER_RUN])
            skip = index * words_of[words.ROW_STRIDE] * words.ROW_UNIT_BYTES
            rows.append(self.vector(words_of[words.RUNS] + run, length, self._dtype, skip))
        return torch.stack(rows)

    def ids(self, record: int) -> list[int] | None:
        begin = self._table[record + words.IDS]
        return self._table[begin : begin + self._table[record]] if begin else None

    def word(self, index: int) -> int:
        return self._table[index]


def assert_equal_site(reader: PoolReader, key: SiteKey, site: LoraSite, dtype: torch.dtype) -> None:
    header = reader.header(key)
    shape = reader.form.shapes[key]
    assert header[words.RANKS + 2] == site.a.shape[0]
    a = site.a.to(dtype)
    if key == EMBED_TOKENS:
        assert torch.equal(reader.matrix(header[words.A], a.shape[0]), a.t())
    else:
        for rank in range(a.shape[0]):
            got = reader.vector(header[words.A] + rank, shape.num_in, dtype)
            assert torch.equal(got, a[rank])
    num_pieces = -(-max(shape.widths) // reader.form.piece_columns)
    for part in site.parts:
        for rank in range(*part.rank):
            got = reader.pieces(header[words.B] + rank * num_pieces, part.b.shape[0], dtype)
            assert torch.equal(got, part.b[:, rank - part.rank[0]].to(dtype))
    for side, floats in ((words.SCALE, site.scale), (words.BIAS, site.bias)):
        assert (header[side] != 0) == (floats is not None)
        if floats is not None:
            assert torch.equal(reader.pieces(header[side], floats.numel(), torch.float32), floats)
    record = header[words.REPLACED]
    assert (record != 0) == (site.replaced is not None)
    if site.replaced is not None:
        rows = site.replaced
        assert torch.equal(reader.matrix(record, rows.rows.shape[1]), rows.rows.to(dtype))
        assert reader.ids(record) == (None if rows.ids is None else rows.ids.tolist())
        bias_word = reader.word(record + words.ROW_BIAS)
        assert (bias_word != 0) == (rows.bias is not None)
        if rows.bias is not None:
            got = reader.pieces(bias_word, rows.bias.numel(), torch.float32)
            assert torch.equal(got, rows.bias)
