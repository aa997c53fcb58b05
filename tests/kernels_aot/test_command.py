"""`python -m kernels.aot`: what it collects, remembers, and says with its exit status."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from kernels.aot.__main__ import GATED, check, main
from kernels.aot.table import as_markdown
from kernels.aot.variants import collect, modules_of, unlisted_kernels

ROOT = Path(__file__).parents[2]
SAMPLES = "tests.kernels_aot.samples"
CLEAN = f"{SAMPLES}.clean"
BROKEN = f"{SAMPLES}.broken"


def test_a_second_run_compiles_nothing_and_says_the_same(tmp_path: Path) -> None:
    first = check([CLEAN], tmp_path, tmp_path / "budgets.json")
    second = check([CLEAN], tmp_path, tmp_path / "budgets.json")
    assert first.findings == second.findings == []
    assert not any(each.was_cached for each in first.built)
    assert all(each.was_cached for each in second.built)
    assert [each.outcome for each in first.built] == [each.outcome for each in second.built]
    assert "2 variants, 10 of 10 compiled (10 unchanged), 0 spills" in second.sentence()
    table = as_markdown(second.built, GATED, "3.9.0").splitlines()
    assert [line.count("|") for line in table[2:]] == [9, 9, 9, 9]


def test_control_a_kernel_that_does_not_compile_and_one_that_is_not_listed_are_findings(
    tmp_path: Path,
) -> None:
    findings = check([BROKEN], tmp_path, tmp_path / "budgets.json").findings
    assert findings[0].startswith(f"{BROKEN}.forgotten_kernel has no variant")
    assert len(findings) == 6
    assert all("mismatch@sm_" in finding for finding in findings[1:])


def test_every_kernel_of_a_module_is_listed_or_found() -> None:
    assert unlisted_kernels([CLEAN], collect([CLEAN])) == []
    assert unlisted_kernels([CLEAN], []) == [f"{CLEAN}.copy_kernel", f"{CLEAN}.product_kernel"]


def test_two_variants_of_one_name_are_refused() -> None:
    with pytest.raises(ValueError, match="more than one variant is called copy, product"):
        collect([CLEAN, CLEAN])


def test_the_exit_status_tells_a_fault(tmp_path: Path) -> None:
    places = ["--cache-dir", str(tmp_path), "--budgets", str(tmp_path / "budgets.json")]
    assert main(["--package", BROKEN, *places]) == 1


def test_it_does_not_run_where_kernels_are_interpreted(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "kernels.aot", "--cache-dir", str(tmp_path)],
        cwd=ROOT,
        env={**os.environ, "TRITON_INTERPRET": "1"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 2
    assert "without TRITON_INTERPRET" in done.stdout


def test_a_package_is_all_of_its_modules() -> None:
    names = ("broken", "clean", "faulty")
    assert modules_of(SAMPLES) == [f"{SAMPLES}.{name}" for name in names]
    assert modules_of(CLEAN) == [CLEAN]
