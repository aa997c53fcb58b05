"""A table of text that can be shown to people or pasted into a page.

Knows nothing of what its cells mean.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rich.table import Table


@dataclass(frozen=True, slots=True)
class Grid:
    """`text_columns`: how many columns, from the left, are words and not figures; so is
    one without a heading."""

    title: str
    headings: Sequence[str]
    rows: Sequence[Sequence[str]]
    text_columns: int = 1

    def as_table(self) -> Table:
        view = Table(title=self.title)
        for index, heading in enumerate(self.headings):
            is_text = index < self.text_columns or not heading
            view.add_column(heading, justify="left" if is_text else "right")
        for row in self.rows:
            view.add_row(*row)
        return view

    def as_markdown(self) -> str:
        lines = [f"**{self.title}**", "", _line(self.headings)]
        lines.append("|" + "---|" * len(self.headings))
        return "\n".join(lines + [_line(row) for row in self.rows]) + "\n"


def _line(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"
