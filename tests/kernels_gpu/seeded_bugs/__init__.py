"""Bugs to be put into the kernels one at a time, each of which the kernels' tests must notice.

A file per area lists its own: `BUGS` in `<area>.py` is for the tests `test_<area>*.py`.
`python -m tests.kernels_gpu.seeded_bugs` tries them all (DeMillo, Lipton and Sayward, "Hints on
test data selection", 1978).
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class SeededBug:
    """`old` stands exactly once in the file at `path` (from the root); `new` is the bug."""

    name: str
    path: str
    old: str
    new: str

    def put_into(self, text: str) -> str:
        """The file with the bug. Raises ValueError when the code has moved on from under it."""
        found = text.count(self.old)
        if found != 1:
            raise ValueError(f"{self.path} has it {found} times: {self.old!r}")
        return text.replace(self.old, self.new)
