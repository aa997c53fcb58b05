"""SQL is constant text in the files that are for it."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
SQL_FILES = {"app/db.py"}
SQL_FILE_SUFFIX = "repository.py"
SQL_WORDS = {"select", "insert", "update", "delete", "text"}


def text_calls(tree: ast.AST) -> Iterator[ast.Call]:
    """Calls of SQLAlchemy's `text(...)`."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and getattr(node.func, "id", None) == "text":
            yield node


def is_constant(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and isinstance(node.value, str)


def sql_imports(tree: ast.AST) -> set[str]:
    """What a module imports from SQLAlchemy to write statements with."""
    return {
        alias.name
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("sqlalchemy")
        for alias in node.names
    } & SQL_WORDS


def app_modules() -> Iterator[tuple[str, ast.Module]]:
    for path in sorted((ROOT / "app").rglob("*.py")):
        yield str(path.relative_to(ROOT)), ast.parse(path.read_text())


def test_text_is_always_a_constant() -> None:
    found = [
        f"{name}:{call.lineno}"
        for name, tree in app_modules()
        for call in text_calls(tree)
        if not all(map(is_constant, call.args))
    ]
    assert found == []


def test_statements_are_written_in_repositories() -> None:
    found = [
        name
        for name, tree in app_modules()
        if sql_imports(tree) and not (name in SQL_FILES or name.endswith(SQL_FILE_SUFFIX))
    ]
    assert found == ["app/tables.py"]  # `text` for server defaults and partial indexes


def test_control_built_sql_is_noticed() -> None:
    tree = ast.parse("text(f'SELECT {x}')\ntext('SELECT ' + x)\ntext('SELECT 1')")
    assert [all(map(is_constant, call.args)) for call in text_calls(tree)] == [False, False, True]
