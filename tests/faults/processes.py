"""The test's side of `nursery.py`: starts processes in milliseconds, and hears how they end.

Knows nothing of what they do. Invariant: a process that has ended is never sent a signal: its
number may be somebody else's.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from queue import SimpleQueue
from typing import Self

CHECKOUT = Path(__file__).parents[2]
BIRTH_TIMEOUT_S = 30.0
READY_TIMEOUT_S = 120.0  # torch, on a busy machine


class Process:
    """As `subprocess.Popen`, of a process that is somebody else's child."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.returncode: int | None = None
        self._has_ended = threading.Event()

    def poll(self) -> int | None:
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """How it ended. Raises TimeoutError."""
        if not self._has_ended.wait(timeout):
            raise TimeoutError(f"process {self.pid} has not ended within {timeout} s")
        assert self.returncode is not None
        return self.returncode

    def send_signal(self, number: signal.Signals) -> None:
        if self.returncode is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def end(self, status: int) -> None:
        """It has ended: to be said once, by who knows."""
        self.returncode = status
        self._has_ended.set()


class Nursery:
    """`with Nursery("app.serve") as nursery: nursery.start("app.serve", ...)`. From any thread."""

    def __init__(self, *modules: str) -> None:
        """modules: what is imported beforehand."""
        self._modules = modules
        self._born: SimpleQueue[Process] = SimpleQueue()
        self._living: dict[int, Process] = {}
        self._is_ready = threading.Event()
        self._one_at_a_time = threading.Lock()

    def __enter__(self) -> Self:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.faults.nursery", *self._modules],
            cwd=CHECKOUT,
            env={**os.environ, "OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "passive"},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        self._thread = threading.Thread(target=self._listen, name="nursery", daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Whoever still lives is killed."""
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.close()
        self._process.wait()
        self._thread.join()
        self._process.stdout.close()

    def start(
        self, module: str, arguments: Sequence[str], env: Mapping[str, str], log: Path
    ) -> Process:
        """Run `python -m module arguments`; what it says goes to `log`."""
        order = {
            "module": module,
            "arguments": list(arguments),
            "env": dict(env),
            "log": str(log),
        }
        assert self._is_ready.wait(READY_TIMEOUT_S), "the nursery is not there"
        assert self._process.stdin is not None
        with self._one_at_a_time:
            self._process.stdin.write(json.dumps(order).encode() + b"\n")
            self._process.stdin.flush()
            return self._born.get(timeout=BIRTH_TIMEOUT_S)

    def _listen(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            said = json.loads(line)
            if "born" in said:
                self._living[said["born"]] = born = Process(said["born"])
                self._born.put(born)
            elif "ended" in said:
                self._living.pop(said["ended"]).end(said["status"])
            else:
                self._is_ready.set()
        for process in self._living.values():  # the nursery is gone, and with it all
            process.end(-signal.SIGKILL)
