"""A backend is a module with exactly the functions of `KernelBackend`, and their parameters."""

from __future__ import annotations

import subprocess
import sys
from types import ModuleType

import pytest

from kernels import cpu, reference
from kernels.backends import choose_backend
from kernels.cpu import invariant
from tests.builders.backend_names import differences


@pytest.mark.parametrize("module", [reference, cpu, invariant], ids=lambda module: module.__name__)
def test_a_backend_offers_exactly_the_ops(module: ModuleType) -> None:
    assert differences(module) == []


def test_a_missing_a_strange_and_a_changed_op_are_each_noticed() -> None:
    changed = ModuleType("changed")
    vars(changed).update({name: getattr(cpu, name) for name in cpu.__all__})
    del changed.rms_norm
    changed.extra_op = lambda x: x
    changed.sample = lambda logits, temperature: logits
    found = {line.split(":")[0] for line in differences(changed)}
    assert found == {"changed.rms_norm", "changed.extra_op", "changed.sample"}


def test_a_name_that_no_backend_has_is_refused() -> None:
    with pytest.raises(ValueError, match="abacus"):
        choose_backend("abacus")


def test_the_cpu_backend_does_not_import_triton() -> None:
    code = "import sys, kernels.backends; assert not {'triton', 'kernels.gpu'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)
