"""Correctness: LoRA at mixed ranks and every popularity, and the per-row forms beside it.

The pool holds NaN wherever no adapter's vector lies (`bench.gpu_adapters`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor

from bench import float64
from bench.gpu_adapters import DRY_RANKS, KEYS, POPULARITY, RANKS, Adapters, Rows
from bench.gpu_checks import NAMES, Checker, dtypes
from bench.gpu_worker import Bench
from bench.shapes import LLAMA_3_8B, TOY
from kernels import gpu
from kernels.gpu.lora import LoraPlan
from kernels.interface import SiteKey
from lora.sites import EMBED_TOKENS, LM_HEAD
from lora.weights import LoraWeights


def run(bench: Bench) -> None:
    checker = Checker(bench)
    base = replace(TOY if bench.dry else LLAMA_3_8B, num_layers=1)
    for dtype in dtypes(dry=bench.dry):
        adapters = Adapters(base, DRY_RANKS if bench.dry else RANKS, dtype, dry=bench.dry)
        for name in POPULARITY:
            rows = adapters.rows(name)
            keys = KEYS if name == "distinct" else KEYS[:1]
            for key in keys:
                what = f"add_lora {name}, {key[1].split('.')[-1]}"
                checker.attempt(what, partial(_add_lora, checker, what, adapters, rows, key))
        for form in (_scale, _bias, _override, _head, _embedding, _embedding_rows):
            checker.attempt(form.__name__.strip("_"), partial(form, checker, adapters))


def _add_lora(checker: Checker, what: str, adapters: Adapters, rows: Rows, key: SiteKey) -> None:
    shape = adapters.pool.format.shapes[key]
    x = adapters.tensor(rows[-1][2], shape.num_in)
    before = adapters.tensor(rows[-1][2], sum(shape.widths))
    got, again, want = before.clone(), before.clone(), before.double()
    plan = adapters.plan(rows)
    gpu.add_lora(got, x, plan, key)
    gpu.add_lora(again, x, plan, key)
    for owner, start, end in rows:
        if owner is not None:
            float64.add_lora(want, x, slice(start, end), adapters.weights[owner].sites[key])
    checker.close(what, got, want)
    checker.equal(f"{what}, {NAMES[x.dtype]}, run to run", again, got)
    _base_rows_equal(checker, what, rows, got, before)


def _base_rows_equal(checker: Checker, what: str, rows: Rows, got: Tensor, before: Tensor) -> None:
    """Rows of no adapter keep their bits."""
    base = [row for owner, start, end in rows if owner is None for row in range(start, end)]
    if base:
        checker.equal(f"{what}, {NAMES[got.dtype]}: base rows", got[base], before[base])


def _check_rows(
    checker: Checker,
    what: str,
    adapters: Adapters,
    before: Tensor,
    call: Callable[[Tensor, LoraPlan | None], None],
    want_of: Callable[[Tensor, LoraWeights, slice], Tensor],
) -> None:
    """`call` changes `before`'s copy; `want_of` says in float64 what an adapter's rows become."""
    rows = adapters.rows("base between")
    got, want = before.clone(), before.double()
    call(got, adapters.plan(rows))
    for owner, start, end in rows:
        if owner is not None:
            part = slice(start, end)
            want[part] = want_of(want[part], adapters.weights[owner], part)
    checker.close(what, got, want)
    _base_rows_equal(checker, what, rows, got, before)


def _scale(checker: Checker, adapters: Adapters) -> None:
    key = KEYS[0]
    width = sum(adapters.pool.format.shapes[key].widths)
    bias = adapters.tensor(width)

    def want(y: Tensor, weights: LoraWeights, _: slice) -> Tensor:
        scale = _wide(weights.sites[key].scale, y)
        return (y - bias.double()) * scale + bias.double()

    def call(y: Tensor, plan: LoraPlan | None) -> None:
        gpu.scale_output(y, bias, plan, key)

    _check_rows(checker, "scale_output", adapters, _rows(adapters, width), call, want)


def _bias(checker: Checker, adapters: Adapters) -> None:
    key = KEYS[0]
    width = sum(adapters.pool.format.shapes[key].widths)

    def want(y: Tensor, weights: LoraWeights, _: slice) -> Tensor:
        return y + _wide(weights.sites[key].bias, y)

    def call(y: Tensor, plan: LoraPlan | None) -> None:
        gpu.add_row_bias(y, plan, key)

    _check_rows(checker, "add_row_bias", adapters, _rows(adapters, width), call, want)


def _override(checker: Checker, adapters: Adapters) -> None:
    key = KEYS[1]
    shape = adapters.pool.format.shapes[key]
    x = _rows(adapters, shape.num_in)

    def want(y: Tensor, weights: LoraWeights, part: slice) -> Tensor:
        replaced = weights.sites[key].replaced
        assert replaced is not None
        rows = replaced.rows.to(adapters.dtype)
        return x[part].double() @ _wide(rows, y).t() + _wide(replaced.bias, y)

    def call(y: Tensor, plan: LoraPlan | None) -> None:
        gpu.override_linear(y, x, plan, key)

    before = _rows(adapters, sum(shape.widths))
    _check_rows(checker, "override_linear", adapters, before, call, want)


def _head(checker: Checker, adapters: Adapters) -> None:
    _add_lora(checker, "add_lora at lm_head", adapters, adapters.rows("skewed"), LM_HEAD)


def _embedding(checker: Checker, adapters: Adapters) -> None:
    ids = _input_ids(adapters)

    def want(hidden: Tensor, weights: LoraWeights, part: slice) -> Tensor:
        site = weights.sites[EMBED_TOKENS]
        columns = _wide(site.a, hidden)[:, ids[part]]
        return hidden + (_wide(site.parts[0].b, hidden) @ columns).t()

    def call(hidden: Tensor, plan: LoraPlan | None) -> None:
        gpu.add_embedding_lora(hidden, ids, plan, EMBED_TOKENS)

    before = _rows(adapters, adapters.base.hidden_size)
    _check_rows(checker, "add_embedding_lora", adapters, before, call, want)


def _embedding_rows(checker: Checker, adapters: Adapters) -> None:
    ids = _input_ids(adapters)
    for owner, start, _ in adapters.rows("base between"):
        if owner is not None:
            replaced = adapters.weights[owner].sites[EMBED_TOKENS].replaced
            assert replaced is not None and replaced.ids is not None
            ids[start] = replaced.ids[-1]

    def want(hidden: Tensor, weights: LoraWeights, part: slice) -> Tensor:
        replaced = weights.sites[EMBED_TOKENS].replaced
        assert replaced is not None and replaced.ids is not None
        found: Mapping[int, int] = {int(token): i for i, token in enumerate(replaced.ids)}
        hidden = hidden.clone()
        for row, token in enumerate(ids[part].tolist()):
            if token in found:
                hidden[row] = _wide(replaced.rows[found[token]], hidden)
        return hidden

    def call(hidden: Tensor, plan: LoraPlan | None) -> None:
        gpu.replace_embedding_rows(hidden, ids, plan, EMBED_TOKENS)

    before = _rows(adapters, adapters.base.hidden_size)
    _check_rows(checker, "replace_embedding_rows", adapters, before, call, want)


def _rows(adapters: Adapters, width: int) -> Tensor:
    return adapters.tensor(adapters.rows("base between")[-1][2], width)


def _input_ids(adapters: Adapters) -> Tensor:
    num_rows = adapters.rows("base between")[-1][2]
    return torch.randint(adapters.base.vocab_size, (num_rows,), device=adapters.device)


def _wide(tensor: Tensor | None, like: Tensor) -> Tensor:
    assert tensor is not None
    return tensor.to(like.device, torch.float64)
