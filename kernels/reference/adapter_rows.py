"""The specification of what adapters need beside LoRA: loops over rows, in float32."""

from __future__ import annotations

from collections.abc import Iterator

from torch import Tensor

from kernels.interface import LoraSegment, LoraSite, SiteKey


def scale_output(y: Tensor, bias: Tensor | None, plan: list[LoraSegment], key: SiteKey) -> None:
    for row, site in _rows(plan, key):
        if site.scale is not None:
            kept = 0.0 if bias is None else bias.float()
            y[row] = ((y[row].float() - kept) * site.scale + kept).to(y.dtype)


def add_row_bias(y: Tensor, plan: list[LoraSegment], key: SiteKey) -> None:
    for row, site in _rows(plan, key):
        if site.bias is not None:
            y[row] = (y[row].float() + site.bias).to(y.dtype)


def replace_embedding_rows(
    hidden: Tensor, input_ids: Tensor, plan: list[LoraSegment], key: SiteKey
) -> None:
    for token, site in _rows(plan, key):
        if site.replaced is None:
            continue
        for index, token_id in enumerate(_ids(site.replaced.ids, site.replaced.rows.shape[0])):
            if int(input_ids[token]) == token_id:
                hidden[token] = site.replaced.rows[index].to(hidden.dtype)


def add_embedding_lora(
    hidden: Tensor, input_ids: Tensor, plan: list[LoraSegment], key: SiteKey
) -> None:
    for token, site in _rows(plan, key):
        for part in site.parts:
            delta = part.b @ site.a[:, int(input_ids[token])]
            hidden[token] = (hidden[token].float() + delta).to(hidden.dtype)


def override_linear(y: Tensor, x: Tensor, plan: list[LoraSegment], key: SiteKey) -> None:
    for row, site in _rows(plan, key):
        if site.replaced is None:
            continue
        values = site.replaced.rows @ x[row].float()
        if site.replaced.bias is not None:
            values = values + site.replaced.bias
        for index, output in enumerate(_ids(site.replaced.ids, values.shape[0])):
            y[row, output] = values[index].to(y.dtype)


def _rows(plan: list[LoraSegment], key: SiteKey) -> Iterator[tuple[int, LoraSite]]:
    for segment in plan:
        site = segment.weights.sites.get(key)
        if site is not None:
            for row in range(segment.start, segment.end):
                yield row, site


def _ids(ids: Tensor | None, count: int) -> list[int]:
    return list(range(count)) if ids is None else [int(i) for i in ids]
