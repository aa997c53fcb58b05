"""Imports flow kernels <- lora <- engine <- app, and the API starts without torch."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
LAYERS = ("kernels", "lora", "engine", "app")
TORCH_FREE_FOR_APP = {
    "engine.collector",
    "engine.event_log",
    "engine.exposition",
    "engine.messages",
    "engine.reasoning",
    "engine.tracing",
    "engine.transport",
    "lora.base_spec",
    "lora.container",
    "lora.digest",
    "lora.findings",
    "lora.limits",
    "lora.manifest",
    "lora.patterns",
    "lora.strict_json",
    "lora.store",
    "lora.store_open",
    "lora.store_parts",
    "lora.values",
    "lora.base_files",
    "lora.base_copies",
}
TORCH_FREE_ENGINE = ("engine.core", "engine.loop", "tests.stub_engine.process")
APP_PROCESSES = ("app.serve", "app.worker", "app.migrate", "app.cli")


def imports_of(source: str) -> set[str]:
    """Absolute names of everything that a module imports, wherever in it."""
    names = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports are absolute"
            assert node.module is not None
            names |= {f"{node.module}.{alias.name}" for alias in node.names}
    return names


def modules(package: str) -> Iterator[Path]:
    yield from sorted((ROOT / package).rglob("*.py"))


def is_within(name: str, package: str) -> bool:
    return name == package or name.startswith(f"{package}.")


def upward_imports(package: str, source: str) -> set[str]:
    """What a module of `package` imports from layers above its own."""
    above = LAYERS[LAYERS.index(package) + 1 :]
    return {name for name in imports_of(source) if any(is_within(name, layer) for layer in above)}


def undeclared_imports(source: str) -> set[str]:
    """What a module of `app` imports from below that is not one of the torch-free contracts."""
    below = {name for name in imports_of(source) if any(is_within(name, x) for x in LAYERS[:-1])}
    return {name for name in below if not any(is_within(name, x) for x in TORCH_FREE_FOR_APP)}


@pytest.mark.parametrize("package", LAYERS)
def test_no_layer_imports_one_above_it(package: str) -> None:
    found = {
        str(path.relative_to(ROOT)): names
        for path in modules(package)
        if (names := upward_imports(package, path.read_text()))
    }
    assert found == {}


def test_app_imports_only_the_torch_free_contracts() -> None:
    found = {
        str(path.relative_to(ROOT)): names
        for path in modules("app")
        if (names := undeclared_imports(path.read_text()))
    }
    assert found == {}


def test_control_a_wrong_import_is_noticed() -> None:
    assert upward_imports("lora", "from engine.core import EngineCore") == {
        "engine.core.EngineCore"
    }
    assert upward_imports("engine", "def f():\n    import app.api") == {"app.api"}
    assert upward_imports("engine", "import lora.manifest, kernels.cpu") == set()
    assert undeclared_imports("from lora.weights import load") == {"lora.weights.load"}
    assert undeclared_imports("from engine.transport.client import QueueClient") == set()


def test_importing_kernels_does_nothing() -> None:
    """Hugging Face has a package of this name, and transformers looks at its version."""
    tree = ast.parse((ROOT / "kernels" / "__init__.py").read_text())
    (only,) = tree.body
    assert isinstance(only, ast.Expr) and isinstance(only.value, ast.Constant)


def run_python(code: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-W", "error::ImportWarning", "-c", code],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=120,
    )


@pytest.mark.parametrize("module", APP_PROCESSES)
def test_app_processes_start_without_torch(module: str) -> None:
    heavy = "{'torch', 'transformers', 'triton'} & sys.modules.keys()"
    done = run_python(f"import sys, {module}; sys.exit(repr({heavy}) if {heavy} else 0)")
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("module", TORCH_FREE_ENGINE)
def test_an_engine_without_a_model_starts_without_torch(module: str) -> None:
    """So that whatever is above the model can be simulated, and killed, by the thousand."""
    heavy = "{'torch', 'transformers', 'triton', 'safetensors'} & sys.modules.keys()"
    done = run_python(f"import sys, {module}; sys.exit(repr({heavy}) if {heavy} else 0)")
    assert done.returncode == 0, done.stderr


def test_control_torch_would_be_noticed() -> None:
    heavy = "{'math'} & sys.modules.keys()"
    assert run_python(f"import sys, math; sys.exit(1 if {heavy} else 0)").returncode == 1


def test_transformers_models_import_from_the_checkout() -> None:
    done = run_python("from transformers import LlamaForCausalLM, MixtralForCausalLM")
    assert done.returncode == 0, done.stderr
