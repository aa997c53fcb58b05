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
from concurrent.futures import Future, ProcessPoolExecutor
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
    paths = {(id(each), arch): cache_dir / f"{_digest(each, arch)}.json" for each, arch in wanted}
    known = {key: _read(path) for key, path in paths.items()}
    missing = [(each, arch) for each, arch in wanted if known[id(each), arch] is None]
    made = dict(_compile_all(missing))
    results = []
    for each, arch in wanted:
        key = (id(each), arch)
        outcome = known[key] or made[key]
        if key in made and isinstance(outcome, Measurement):
            paths[key].write_text(json.dumps(outcome.as_dict()))
        results.append(Built(each, arch, outcome, was_cached=key not in made))
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


def _compile_all(
    missing: list[tuple[Shipped, str]],
) -> Iterator[tuple[tuple[int, str], Measurement | str]]:
    if not missing:
        return
    spawn = multiprocessing.get_context("spawn")
    with (
        tempfile.TemporaryDirectory(prefix="tenfold-aot-") as scratch,
        ProcessPoolExecutor(PROCESSES, spawn, _start_worker, (scratch,)) as pool,
    ):
        futures: list[Future[Measurement | str]] = [
            pool.submit(_compile_one, each.module, each.variant.name, arch)
            for each, arch in missing
        ]
        for (each, arch), future in zip(missing, futures, strict=True):
            yield (id(each), arch), future.result()


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
