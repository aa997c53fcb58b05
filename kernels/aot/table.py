"""The figures of compiled kernels as a table, for a terminal or for docs/performance.md.

Knows nothing of how they were made or judged. One row a variant; where architectures differ, one
figure each, in their order.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from rich.table import Table

from kernels.aot.build import Built
from kernels.aot.compile import Measurement

_COLUMNS = (
    "Variant",
    "Warps, stages",
    "Registers",
    "Spills",
    "Shared KiB",
    "CTAs/SM",
    "16-byte loads",
    "Tensor cores",
)


def rows(built: Iterable[Built], architectures: Sequence[str]) -> list[tuple[str, ...]]:
    """`built` may hold other architectures too; those are left out."""
    by_variant: dict[str, list[Built]] = {}
    for each in built:
        if each.architecture in architectures:
            by_variant.setdefault(each.shipped.variant.name, []).append(each)
    return [_row(name, of_one) for name, of_one in sorted(by_variant.items())]


def _row(name: str, built: Sequence[Built]) -> tuple[str, ...]:
    variant = built[0].shipped.variant
    cells = [
        _cells(each.outcome) if isinstance(each.outcome, Measurement) else ("-",) * 6
        for each in built
    ]
    together = (_join(values) for values in zip(*cells, strict=True))
    return (name, f"{variant.num_warps}, {variant.num_stages}", *together)


def _cells(measured: Measurement) -> tuple[str, ...]:
    tensor_core = " ".join(f"{count} {name}" for name, count in measured.tensor_core.items())
    return (
        str(measured.registers),
        str(measured.spills),
        f"{measured.shared_bytes / 1024:.1f}",
        str(measured.blocks_per_sm),
        f"{measured.wide_loads} of {measured.loads}",
        tensor_core or "none",
    )


def _join(values: Sequence[str]) -> str:
    return values[0] if len(set(values)) == 1 else " / ".join(values)


def as_markdown(built: Iterable[Built], architectures: Sequence[str], release: str) -> str:
    lines = [
        f"Triton {release}; figures are {' / '.join(architectures)} where they differ.",
        "",
        _markdown_row(_COLUMNS),
        _markdown_row(["---"] * len(_COLUMNS)),
        *(_markdown_row(row) for row in rows(built, architectures)),
    ]
    return "\n".join(lines)


def _markdown_row(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cells)} |"


def as_table(built: Iterable[Built], architectures: Sequence[str], release: str) -> Table:
    table = Table(title=f"Triton {release}: {' / '.join(architectures)}")
    for column in _COLUMNS:
        table.add_column(column, justify="left" if column == "Variant" else "right", no_wrap=True)
    for row in rows(built, architectures):
        table.add_row(*row)
    return table
