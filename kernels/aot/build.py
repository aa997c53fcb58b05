"""Compiles many variants: in two processes, and only what has changed.

Knows no limit and no kernel. Invariant: a measurement is found again under a digest of everything
that it depends on: the kernel's source and that of what it calls, the variant, the architecture,
Triton's release, and the code that measures.
"""

from __future__ import annotations

import hashlib
import json
import multiprocessing
import os
import sys
import tempfile
from collections.abc import Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import triton

from kernels.aot import compile as compiler
from kernels.aot.compile import ARCHITECTURES, Measurement, compile_variant
from kernels.aot.variants import Shipped, collect

PROCESSES = 2
MAX_ERROR = 400


@dataclass(frozen=True, slots=True)
class Built:
    """`outcome`: the measurement, or why the variant does not compile."""

    shipped: Shipped
    architecture: str
    outcome: Measurement | str
    was_cached: bool


def build(shipped: Iterable[Shipped], architectures: Iterable[str], cache_dir: Path) -> list[Built]:
    """Every variant for every architecture, in the order of the arguments."""
    cache_dir.mkdir(parents=True, exist_ok=True)
    wanted = [(each, arch) for each in shipped for arch in architectures]
    paths = [cache_dir / f"{_digest(each, arch)}.json" for each, arch in wanted]
    known = [_read(path) for path in paths]
    missing = [which for which, found in zip(wanted, known, strict=True) if found is None]
    made = _compile_all(missing)
    results = []
    for (each, arch), path, found in zip(wanted, paths, known, strict=True):
        outcome = found if found is not None else next(made)
        if found is None and isinstance(outcome, Measurement):
            _write(path, outcome)
        results.append(Built(each, arch, outcome, was_cached=found is not None))
    return results


def _digest(shipped: Shipped, architecture: str) -> str:
    variant = shipped.variant
    parts = {
        "kernel": variant.kernel.cache_key,
        "signature": variant.signature,
        "constexprs": {name: repr(value) for name, value in variant.constexprs.items()},
        "divisible": sorted(variant.divisible),
        "options": [variant.num_warps, variant.num_stages],
        "architecture": architecture,
        "triton": triton.__version__,
        "measured_by": Path(compiler.__file__).read_text(),
    }
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:32]


def _read(path: Path) -> Measurement | None:
    return Measurement(**json.loads(path.read_text())) if path.exists() else None


def _write(path: Path, measured: Measurement) -> None:
    """Whole or not at all: another run may be reading."""
    part = path.with_suffix(f".{os.getpid()}")
    part.write_text(json.dumps(measured.as_dict()))
    part.replace(path)


def _compile_all(missing: list[tuple[Shipped, str]]) -> Iterator[Measurement | str]:
    """In the order of `missing`, each as soon as those before it are there."""
    if not missing:
        return
    spawn = multiprocessing.get_context("spawn")
    with (
        tempfile.TemporaryDirectory(prefix="tenfold-aot-") as scratch,
        ProcessPoolExecutor(PROCESSES, spawn, _start_worker, (scratch,)) as pool,
    ):
        futures = [
            pool.submit(_compile_one, each.module, each.variant.name, arch)
            for each, arch in missing
        ]
        for future in futures:
            yield future.result()


def _start_worker(scratch: str) -> None:
    # Triton's own cache would keep every stage of every variant for good: some 100 MB a run.
    os.environ["TRITON_CACHE_DIR"] = scratch
    # Triton prints the whole assembly of what does not assemble; the exception says why.
    with Path(os.devnull).open("w") as nowhere:
        os.dup2(nowhere.fileno(), sys.stdout.fileno())


def _compile_one(module: str, name: str, architecture: str) -> Measurement | str:
    (variant,) = (each.variant for each in collect([module]) if each.variant.name == name)
    try:
        return compile_variant(variant, ARCHITECTURES[architecture])
    except Exception as error:  # this process's edge: the other one reports it
        return f"{type(error).__name__}: {' '.join(str(error).split())[:MAX_ERROR]}"
