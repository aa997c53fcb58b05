"""Builder: `tenfold demo` or `tenfold serve` as a user runs it, on its own folder and ports."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from app.launcher.errors import PortInUseError
from app.launcher.ports import check_port_free, free_port

CHECKOUT = Path(__file__).parents[2]
START_TIMEOUT_S = 220.0
STOP_TIMEOUT_S = 120.0
READY_LINE = "Ctrl-C stops everything."
NUM_CHILDREN = 5
"""Postgres, Valkey, engine, worker, API; of external servers, three."""


@dataclass(frozen=True, slots=True)
class RunningStack:
    """`output` is the file with all that the command prints."""

    process: subprocess.Popen[bytes]
    data_dir: Path
    port: int
    output: Path

    @property
    def base_url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def admin_url(self) -> str:
        return f"http://127.0.0.1:{self.port + 1}"

    @property
    def info(self) -> dict[str, Any]:
        """The demo's `demo.json`."""
        content: dict[str, Any] = json.loads((self.data_dir / "demo.json").read_text())
        return content

    def descendants(self) -> list[psutil.Process]:
        return psutil.Process(self.process.pid).children(recursive=True)

    def child(self, name: str) -> psutil.Process:
        """By its name: `postgres`, `valkey`, `engine`, `worker`, `api`."""
        folder = self.data_dir / (name if name in ("postgres", "valkey") else "run")
        return psutil.Process(int((folder / f"{name}.pid").read_text().split()[0]))

    def ends_whole(self, signum: signal.Signals, num_children: int) -> bool:
        """Whether it ends as it should on this signal, and each of so many children with it."""
        processes = self.descendants()
        assert len(processes) >= num_children
        assert self.stop(signum) == 0
        assert self.output.read_text().endswith("Stopped.\n")
        return not any(map(lives, processes))

    def stop(self, signum: signal.Signals = signal.SIGTERM) -> int:
        """Ask it to stop; its exit status."""
        self.process.send_signal(signum)
        return self.process.wait(STOP_TIMEOUT_S)


def lives(process: psutil.Process) -> bool:
    try:
        return process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def start_demo(data_dir: Path, *options: str) -> RunningStack:
    """`tenfold demo` with these options, ready."""
    return start_stack("demo", data_dir, *options)


def start_stack(
    command: str, data_dir: Path, *options: str | Path, env: Mapping[str, str] | None = None
) -> RunningStack:
    """Start it and wait until it has said that it is ready. Fails with its output otherwise."""
    port = _two_free_ports()
    output = data_dir / "output.txt"
    places = ("--data-dir", str(data_dir), "--port", str(port))
    started_at = time.monotonic()
    with output.open("wb") as sink:
        process = subprocess.Popen(
            [sys.executable, "-m", "app.cli", command, *places, *map(str, options)],
            cwd=CHECKOUT,
            env={**os.environ, **(env or {})},
            stdin=subprocess.DEVNULL,
            stdout=sink,
            stderr=sink,
        )
    while READY_LINE not in output.read_text():
        took_s = time.monotonic() - started_at
        if process.poll() is not None or took_s > START_TIMEOUT_S:
            process.kill()
            raise AssertionError(f"not ready after {took_s:.0f} s:\n{output.read_text()}")
        time.sleep(0.05)
    return RunningStack(process=process, data_dir=data_dir, port=port, output=output)


def _two_free_ports() -> int:
    """A port such that it and the next are free: the admin port is the next."""
    while True:
        port = free_port()
        try:
            check_port_free(port + 1)
        except PortInUseError:
            continue
        return port
