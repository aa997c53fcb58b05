"""What comes from tenants is never unpickled, imported or evaluated: not in the source, and not in
any test (`tests/fixtures/tenant_bytes.py`, of which the controls are here)."""

from __future__ import annotations

import ast
import pickle
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.fixtures.tenant_bytes import HANDLERS, ROOT, TenantBytesError, refusals_expected

PACKAGES = ("app", "lora")
MODULES = {"pickle", "cPickle", "dill", "cloudpickle", "joblib", "marshal", "shelve", "runpy"}
CALLS = {"eval", "exec", "compile", "__import__", "import_module"}
LOADERS = {("torch", "load"), ("np", "load"), ("numpy", "load"), ("yaml", "load")}
# Whether a wheel of ours is installed, its version, and files within our own packages.
OF_IMPORTLIB = {"importlib.metadata", "importlib.resources", "importlib.util"}


def forbidden(source: str, *, handles_tenants_bytes: bool = False) -> list[str]:
    """What a module must not use, as it is written there."""
    return list(_found(ast.parse(source), handles_tenants_bytes))


def _found(tree: ast.AST, is_handler: bool) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            names = [node.module or ""]
            names += [alias.name for alias in node.names if alias.name in CALLS]
        elif isinstance(node, ast.Call):
            names = [_called(node.func)]
        else:
            continue
        yield from (name for name in names if _is_forbidden(name, node, is_handler))


def _called(func: ast.expr) -> str:
    if isinstance(func, ast.Name):
        return func.id
    if isinstance(func, ast.Attribute) and isinstance(func.value, ast.Name):
        return f"{func.value.id}.{func.attr}"
    return ""


def _is_forbidden(name: str, node: ast.AST, is_handler: bool) -> bool:
    if isinstance(node, ast.Call):
        owner, _, attribute = name.rpartition(".")
        is_own_compile = attribute == "compile" and owner != ""  # re.compile, re2.compile
        return (owner, attribute) in LOADERS or (attribute in CALLS and not is_own_compile)
    if name.partition(".")[0] == "importlib":
        return is_handler or not any(name.startswith(each) for each in OF_IMPORTLIB)
    return name.partition(".")[0] in MODULES or name in CALLS


def test_no_module_unpickles_imports_by_name_or_evaluates() -> None:
    found = {}
    for package in PACKAGES:
        for path in sorted((Path(ROOT) / package).rglob("*.py")):
            name = str(path.relative_to(ROOT))
            is_handler = name.startswith(tuple(f"{each}/" for each in HANDLERS))
            if names := forbidden(path.read_text(), handles_tenants_bytes=is_handler):
                found[name] = names
    assert found == {}


@pytest.mark.parametrize(
    ("source", "names"),
    [
        ("import pickle", ["pickle"]),
        ("from pickle import loads", ["pickle"]),
        ("import torch\ntorch.load(path)", ["torch.load"]),
        ("import numpy as np\nnp.load(path, allow_pickle=True)", ["np.load"]),
        ("eval(text)", ["eval"]),
        ("__import__(name)", ["__import__"]),
        ("import importlib", ["importlib"]),
        ("from importlib import import_module", ["importlib", "import_module"]),
        ("import re\nre.compile(pattern)", []),
        ("from importlib.resources import files", []),
        ("from safetensors.torch import load_file", []),
    ],
)
def test_control_the_lint_sees_them(source: str, names: list[str]) -> None:
    assert forbidden(source) == names


def test_control_handlers_may_not_even_look_for_modules() -> None:
    source = "from importlib.util import find_spec"
    assert forbidden(source) == []
    assert forbidden(source, handles_tenants_bytes=True) == ["importlib.util"]


def as_a_handler(source: str) -> Any:
    """The function `act` of `source`, as if it stood in a file that handles tenants' bytes."""
    names: dict[str, Any] = {}
    exec(compile(source, f"{ROOT}/lora/made_for_a_test.py", "exec"), names)
    return names["act"]


@pytest.mark.parametrize(
    ("source", "argument", "what"),
    [
        (
            "import pickle\ndef act(data): return pickle.loads(data)",
            b"cbuiltins\nprint\n.",
            "unpickle builtins.print",
        ),
        (
            "import importlib\ndef act(name): return importlib.import_module(name)",
            "tabnanny",
            "execute tabnanny.py",
        ),
        ("def act(name): return __import__(name)", "tabnanny", "import tabnanny"),
        ("def act(path): return open(path).read()", "/etc/passwd", "open /etc/passwd"),
        (
            "from pathlib import Path\ndef act(path): return Path(path).read_bytes()",
            "/etc/hostname",
            "open /etc/hostname",
        ),
    ],
)
def test_control_the_hook_refuses(source: str, argument: Any, what: str) -> None:
    act = as_a_handler(source)
    with refusals_expected() as found, pytest.raises(TenantBytesError):
        act(argument)
    assert found == [what]


def test_control_others_may(tmp_path: Path) -> None:
    assert pickle.loads(pickle.dumps(Path)) is Path
    file = tmp_path / "adapter_config.json"
    file.write_text("{}")
    act = as_a_handler("from pathlib import Path\ndef act(path): return Path(path).read_text()")
    assert act(str(file)) == "{}"
