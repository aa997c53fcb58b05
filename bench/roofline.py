"""Floors: what a decode step must at least move and compute, and what of a page lies empty.

    python -m bench.roofline [--markdown]

Knows no kernel and measures nothing: bytes come from the base's shapes and from the layout that
adapters really have in the pool (`lora.layout`), rates are given. Invariant: a floor counts every
byte once that some step reads anew: weights, the KV of every sequence, each distinct adapter.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Annotated

import typer
from rich.console import Console

from bench.grid import Grid
from bench.shapes import LLAMA_3_8B, TARGET_SETS
from lora.base_spec import BaseSpec
from lora.layout import AdapterLayout, page_format, plan_layout, uniform_content

ELEMENT_BYTES = 2
BLOCK_SIZE = 16
BATCHES = (1, 32, 64, 256)
CONTEXTS = (1024, 8192)
RANKS = (8, 16, 32, 64)
MIXED_RANKS = (8, 16, 32, 64)


@dataclass(frozen=True, slots=True)
class Machine:
    """`copy`: bytes/s, read and written ones counted; `matmul`: dense bfloat16 flop/s."""

    name: str
    copy: float
    matmul: float
    memory_bytes: float


# As measured on one such machine; bench.gpu measures both again and uses what it finds.
H200 = Machine("one H200", copy=4.3e12, matmul=790e12, memory_bytes=139 * 2**30)


def weight_elements(base: BaseSpec) -> int:
    """Weights that each step multiplies with: every linear and the output head."""
    layer = sum(width * height for width, height in base.linear_modules().values())
    return base.num_layers * layer + base.hidden_size * base.vocab_size


def weight_bytes(base: BaseSpec) -> int:
    return weight_elements(base) * ELEMENT_BYTES


def kv_bytes_per_token(base: BaseSpec) -> int:
    """K and V of all layers."""
    return 2 * base.num_layers * base.num_kv_heads * base.head_dim * ELEMENT_BYTES


def page_bytes(base: BaseSpec) -> int:
    return kv_bytes_per_token(base) * BLOCK_SIZE


@cache
def adapter_layout(base: BaseSpec, modules: tuple[str, ...], rank: int) -> AdapterLayout:
    """Where an adapter of `rank` at `modules` of every layer lies in the pool's pages."""
    pages = page_format(base, page_bytes(base), ELEMENT_BYTES)
    return plan_layout(uniform_content(base, modules, rank), pages)


def adapter_bytes(base: BaseSpec, modules: tuple[str, ...], rank: int) -> int:
    """What a step reads of one adapter: its vectors, without alignment and page tails."""
    return adapter_layout(base, modules, rank).num_bytes


def gemm_s(base: BaseSpec, batch: int, machine: Machine) -> float:
    """The base's products: bound by their weights' bytes, or by their arithmetic."""
    flops = 2 * weight_elements(base) * batch
    return max(weight_bytes(base) / machine.copy, flops / machine.matmul)


def attention_s(base: BaseSpec, batch: int, context: int, machine: Machine) -> float:
    return batch * context * kv_bytes_per_token(base) / machine.copy


def step_s(base: BaseSpec, batch: int, context: int, machine: Machine) -> float:
    """One decode step of `batch` sequences of the base alone."""
    return gemm_s(base, batch, machine) + attention_s(base, batch, context, machine)


def lora_bytes(base: BaseSpec, modules: tuple[str, ...], ranks: Sequence[int]) -> int:
    """All vectors of one adapter of each of `ranks`."""
    return sum(ranks.count(rank) * adapter_bytes(base, modules, rank) for rank in set(ranks))


def fits(base: BaseSpec, batch: int, context: int, adapter_bytes: int, machine: Machine) -> bool:
    """Whether weights, the KV of all sequences and the adapters are in memory at once."""
    kv = batch * context * kv_bytes_per_token(base)
    embedding = 0 if base.tie_word_embeddings else base.vocab_size * base.hidden_size
    weights = weight_bytes(base) + embedding * ELEMENT_BYTES
    return weights + kv + adapter_bytes <= machine.memory_bytes


def step_grid(base: BaseSpec, machine: Machine) -> Grid:
    rows = []
    for batch in BATCHES:
        flops_ms = 2 * weight_elements(base) * batch / machine.matmul * 1e3
        bytes_ms = weight_bytes(base) / machine.copy * 1e3
        cells = [str(batch), f"{bytes_ms:.2f}", f"{flops_ms:.2f}"]
        for context in CONTEXTS:
            if fits(base, batch, context, 0, machine):
                attention_ms = attention_s(base, batch, context, machine) * 1e3
                floor_s = step_s(base, batch, context, machine)
                cells += [f"{attention_ms:.2f}", f"{floor_s * 1e3:.2f} ({batch / floor_s:.0f})"]
            else:
                cells += ["does not fit", "-"]
        rows.append(cells)
    headings = ["batch", "weights' bytes, ms", "products' flops, ms"]
    for context in CONTEXTS:
        headings += [f"attention {context // 1024}k, ms", f"step {context // 1024}k, ms (tok/s)"]
    title = (
        f"Floor of a decode step without LoRA: {base.model_id}, bfloat16, {machine.name}; weights "
        f"{weight_bytes(base) / 1e9:.2f} GB a step, KV {kv_bytes_per_token(base) // 1024} KiB a "
        f"token"
    )
    return Grid(title, headings, rows)


def lora_grid(base: BaseSpec, machine: Machine) -> Grid:
    """N distinct adapters in a batch of N: bytes, time, share of the step without LoRA."""
    rows = [
        _lora_row(base, machine, name, ranks, label)
        for name in TARGET_SETS
        for label, ranks in _rank_mixes()
    ]
    per_rank = ", ".join(
        f"{name} {adapter_bytes(base, modules, 1) / 1e6:.2f}"
        for name, modules in TARGET_SETS.items()
    )
    title = f"Floor of LoRA: N distinct adapters, batch N; MB a rank: {per_rank}"
    headings = ["targets", "ranks", "adapters", "GB a step", "ms"]
    headings += [f"of the step, {context // 1024}k" for context in CONTEXTS]
    return Grid(title, headings, rows, text_columns=2)


def _rank_mixes() -> Iterator[tuple[str, list[int]]]:
    for batch in BATCHES:
        for rank in (16, 64):
            yield str(rank), [rank] * batch
        if batch % len(MIXED_RANKS) == 0:
            yield "/".join(map(str, MIXED_RANKS)), [*MIXED_RANKS] * (batch // len(MIXED_RANKS))


def _lora_row(
    base: BaseSpec, machine: Machine, targets: str, ranks: Sequence[int], label: str
) -> list[str]:
    batch, num_bytes = len(ranks), lora_bytes(base, TARGET_SETS[targets], ranks)
    cells = [targets, label, str(batch), f"{num_bytes / 1e9:.2f}"]
    cells.append(f"{num_bytes / machine.copy * 1e3:.3f}")
    for context in CONTEXTS:
        share = num_bytes / machine.copy / step_s(base, batch, context, machine)
        cells.append(
            f"{share:.1%}" if fits(base, batch, context, num_bytes, machine) else "does not fit"
        )
    return cells


def waste_grid(base: BaseSpec) -> Grid:
    """What of an adapter's pages holds nothing, by rank and target set."""
    rows, total_bytes, total_pages = [], 0, 0
    for name, modules in TARGET_SETS.items():
        for rank in RANKS:
            layout = adapter_layout(base, modules, rank)
            total_bytes += layout.num_bytes
            total_pages += layout.num_pages
            rows.append(_waste_row(name, str(rank), layout.num_bytes, layout.num_pages, base))
    rows.append(_waste_row("one of each", "", total_bytes, total_pages, base))
    title = (
        f"Pages of an adapter: {base.model_id}, bfloat16, pages of "
        f"{page_bytes(base) / 2**20:.0f} MiB ({BLOCK_SIZE} tokens)"
    )
    return Grid(title, ("targets", "rank", "MB", "pages", "empty"), rows)


def _waste_row(
    targets: str, rank: str, num_bytes: int, num_pages: int, base: BaseSpec
) -> tuple[str, ...]:
    empty = 1 - num_bytes / (num_pages * page_bytes(base))
    return (targets, rank, f"{num_bytes / 1e6:.2f}", str(num_pages), f"{empty:.1%}")


def all_grids() -> list[Grid]:
    """What the command prints: Llama-3-8B on one H200."""
    base, machine = LLAMA_3_8B, H200
    return [step_grid(base, machine), lora_grid(base, machine), waste_grid(base)]


def main(
    markdown: Annotated[bool, typer.Option(help="tables for a page")] = False,
) -> None:
    """Print the floors of Llama-3-8B on one H200, and the waste of its adapters' pages."""
    console = Console(width=None if Console().is_terminal else 130)
    grids = all_grids()
    for grid in grids:
        if markdown:
            console.print(grid.as_markdown(), soft_wrap=True, markup=False, highlight=False)
        else:
            console.print(grid.as_table())
    if not markdown:
        weights_gb = weight_bytes(LLAMA_3_8B) / 1e9
        console.print(f"bench.roofline: {len(grids)} tables, weights {weights_gb:.2f} GB a step")


if __name__ == "__main__":
    typer.run(main)
