"""`python -m kernels.aot`: compile, judge, show. The exit status is the verdict.

`--record` writes down today's figures as the budgets of this release of Triton.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

# Triton 3.9 warns that its default for fused multiply-add is about to change.
os.environ.setdefault("TRITON_DEFAULT_FP_FUSION", "1")

import triton

from kernels.aot.build import Built, build
from kernels.aot.compile import ARCHITECTURES, Measurement
from kernels.aot.gate import BUDGETS_PATH, budget_key, judge, read_budgets, record_budgets
from kernels.aot.table import as_markdown, as_table
from kernels.aot.variants import collect, modules_of, unlisted_kernels

GATED = tuple(name for name, arch in ARCHITECTURES.items() if arch.is_gated)
CACHE_DIR = Path("build") / "aot"
MIN_WIDTH = 200


@dataclass(frozen=True, slots=True)
class Verdict:
    """`findings` are sentences, each begins with what it is about."""

    built: list[Built]
    findings: list[str]
    seconds: float

    def sentence(self) -> str:
        measured = [each.outcome for each in self.built if isinstance(each.outcome, Measurement)]
        variants = len({each.shipped.variant.name for each in self.built})
        spills = sum(
            each.outcome.spills
            for each in self.built
            if each.architecture in GATED and isinstance(each.outcome, Measurement)
        )
        cached = sum(each.was_cached for each in self.built)
        return (
            f"aot {'FAILED' if self.findings else 'passed'} with Triton {triton.__version__}: "
            f"{variants} variants, {len(measured)} of {len(self.built)} compiled "
            f"({cached} unchanged), {spills} spills on {' and '.join(GATED)}, "
            f"{len(self.findings)} findings, {self.seconds:.0f} s"
        )


def check(
    modules: Sequence[str],
    cache_dir: Path,
    budgets_path: Path,
    architectures: Sequence[str] = tuple(ARCHITECTURES),
) -> Verdict:
    """Compiles every variant of `modules` for `architectures` and judges the gated ones."""
    started = time.perf_counter()
    shipped = collect(modules)
    found = [
        f"{name} has no variant: list it in its module's aot_variants()"
        for name in unlisted_kernels(modules, shipped)
    ]
    if not shipped:
        found.append("there is no variant to compile")
    built = build(shipped, tuple(architectures), cache_dir)
    budgets = read_budgets(budgets_path, triton.__version__)
    for each in built:
        about = budget_key(each.shipped.variant.name, each.architecture)
        if isinstance(each.outcome, str):
            found.append(f"{about} does not compile: {each.outcome}")
        elif each.architecture in GATED:
            reasons = judge(each.shipped.variant, each.architecture, each.outcome, budgets)
            found += [f"{about}: {reason}" for reason in reasons]
        elif each.outcome.blocks_per_sm < 1:
            found.append(
                f"{about} does not fit: {each.outcome.shared_bytes} bytes of shared memory"
            )
    return Verdict(built, found, time.perf_counter() - started)


def record(modules: Sequence[str], cache_dir: Path, budgets_path: Path) -> None:
    built = build(collect(modules), GATED, cache_dir)
    figures = [
        (budget_key(each.shipped.variant.name, each.architecture), each.outcome)
        for each in built
        if isinstance(each.outcome, Measurement)
    ]
    record_budgets(budgets_path, triton.__version__, figures)


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m kernels.aot", description=__doc__)
    parser.add_argument("--record", action="store_true", help="today's figures become budgets")
    parser.add_argument("--markdown", action="store_true", help="print a table for the docs")
    parser.add_argument("--gated-only", action="store_true", help="only what is also judged")
    parser.add_argument("--package", default="kernels.gpu", help="a package or module of kernels")
    parser.add_argument("--cache-dir", type=Path, default=CACHE_DIR)
    parser.add_argument("--budgets", type=Path, default=BUDGETS_PATH)
    options = parser.parse_args(arguments)
    console = Console(width=max(Console().width, MIN_WIDTH), highlight=False)
    if os.environ.get("TRITON_INTERPRET", "0") not in ("", "0"):
        console.print("kernels.aot compiles: run it without TRITON_INTERPRET")
        return 2
    modules = modules_of(options.package)
    if options.record:
        record(modules, options.cache_dir, options.budgets)
    architectures = GATED if options.gated_only else tuple(ARCHITECTURES)
    verdict = check(modules, options.cache_dir, options.budgets, architectures)
    if options.markdown:
        text = as_markdown(verdict.built, GATED, triton.__version__)
        console.print(text, markup=False, soft_wrap=True)
        console = Console(stderr=True, highlight=False)
    else:
        console.print(as_table(verdict.built, GATED, triton.__version__))
    for line in (*verdict.findings, verdict.sentence()):
        console.print(line, markup=False, soft_wrap=True)
    return bool(verdict.findings)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
