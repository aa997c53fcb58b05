"""What the API process imports of this package never loads torch."""

from __future__ import annotations

import subprocess
import sys

MODULES = [
    "base_check",
    "base_spec",
    "config_fields",
    "container",
    "digest",
    "findings",
    "header_entries",
    "limits",
    "manifest",
    "patterns",
    "peft_config",
    "safetensors_header",
    "store",
    "strict_json",
    "targets",
    "tensor_names",
    "tensor_plan",
    "values",
]
HEAVY = ("torch", "transformers", "peft", "safetensors")


def loaded_by(statement: str) -> list[str]:
    script = f"import sys; {statement}; print([m for m in {HEAVY} if m in sys.modules])"
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=60
    )
    found: list[str] = eval(done.stdout)
    return found


def test_no_module_loads_torch() -> None:
    assert loaded_by("import " + ", ".join(f"lora.{name}" for name in MODULES)) == []


def test_the_check_can_fail() -> None:
    assert loaded_by("import safetensors") == ["safetensors"]
