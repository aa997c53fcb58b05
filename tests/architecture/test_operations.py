"""The table of dependencies in docs/operations.md and the tests of its rows are the same list."""

from __future__ import annotations

import ast
import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
TABLE = ROOT / "docs" / "operations.md"
FAULTS = ROOT / "tests" / "faults"
TESTS = ("test_dependencies.py", "test_unwilling_postgres.py", "test_store_outages.py")
ROW = re.compile(r"^\|.*\| `(test_\w+)` \|$", re.MULTILINE)


def rows_without_test(page: str, tests: str) -> tuple[set[str], set[str]]:
    """Rows whose test there is not, and tests that no row names."""
    named = set(ROW.findall(page))
    written = {
        node.name
        for node in ast.parse(tests).body
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and node.name.startswith("test_")
        and not node.name.startswith("test_control_")
    }
    return named - written, written - named


def test_every_row_of_the_table_of_dependencies_is_a_test_and_every_test_a_row() -> None:
    tests = "\n".join((FAULTS / name).read_text() for name in TESTS)
    assert rows_without_test(TABLE.read_text(), tests) == (set(), set())


def test_control_a_missing_row_and_a_missing_test_are_seen() -> None:
    page = "| Redis is down | 503 | pause | 503 | `test_redis_is_down` |"
    assert rows_without_test(page, "def test_other(): ...") == (
        {"test_redis_is_down"},
        {"test_other"},
    )
