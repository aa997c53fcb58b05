"""Builder: `tenfold demo` as a user runs it, on a folder and ports of its own."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from app.launcher.errors import PortInUseError
from app.launcher.ports import check_port_free, free_port

CHECKOUT = Path(__file__).parents[2]
START_TIMEOUT_S = 180.0
STOP_TIMEOUT_S = 60.0
READY_LINE = "Ctrl-C stops everything."


@dataclass(frozen=True, slots=True)
class RunningDemo:
    """`info` is `demo.json`, parsed; `output` is what the command prints, in a file."""

    process: subprocess.Popen[bytes]
    data_dir: Path
    port: int
    output: Path
    info: dict[str, Any]
    start_s: float

    def stop(self, signum: signal.Signals = signal.SIGTERM) -> int:
        """Ask it to stop; its exit status."""
        self.process.send_signal(signum)
        return self.process.wait(STOP_TIMEOUT_S)


def start_demo(data_dir: Path, port: int | None = None) -> RunningDemo:
    """Start it and wait until it has said that it is ready. Fails with its output otherwise."""
    port = port or _two_free_ports()
    output = data_dir / "output.txt"
    command = [sys.executable, "-m", "app.cli", "demo", "--data-dir", data_dir, "--port", port]
    started_at = time.monotonic()
    with output.open("wb") as sink:
        process = subprocess.Popen(
            [str(part) for part in command],
            cwd=CHECKOUT,
            env={**os.environ, "OMP_NUM_THREADS": "2"},
            stdin=subprocess.DEVNULL,
            stdout=sink,
            stderr=sink,
        )
    while READY_LINE not in output.read_text():
        took_s = time.monotonic() - started_at
        if process.poll() is not None or took_s > START_TIMEOUT_S:
            process.kill()
            raise AssertionError(
                f"the demo is not ready after {took_s:.0f} s:\n{output.read_text()}"
            )
        time.sleep(0.05)
    return RunningDemo(
        process=process,
        data_dir=data_dir,
        port=port,
        output=output,
        info=json.loads((data_dir / "demo.json").read_text()),
        start_s=time.monotonic() - started_at,
    )


def _two_free_ports() -> int:
    """A port such that it and the next are free: the admin port is the next."""
    while True:
        port = free_port()
        try:
            check_port_free(port + 1)
        except PortInUseError:
            continue
        return port
