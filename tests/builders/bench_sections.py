"""Sections for a bench's supervisor that go well and wrong. They run in a worker process."""

from __future__ import annotations

import os
import time

from bench.gpu_worker import Bench


def quick(bench: Bench) -> None:
    bench.report("pid", "count", os.getpid())
    bench.report("time of a copy", "us", None if bench.dry else 1.0)


def endless(bench: Bench) -> None:
    bench.report("before", "count", 1.0)
    while True:  # as a kernel that hangs: nothing in the process gives up by itself
        time.sleep(1)


def dying(bench: Bench) -> None:
    bench.report("before", "count", 1.0)
    os._exit(7)


def raising(bench: Bench) -> None:
    raise ValueError("no such kernel")


def timing_in_a_dry_run(bench: Bench) -> None:
    bench.report("made up", "us", 1.0)


def fact_teller(bench: Bench) -> None:
    bench.tell_fact("copy", 4.0)


def fact_reader(bench: Bench) -> None:
    bench.report("copy", "count", bench.facts["copy"])
