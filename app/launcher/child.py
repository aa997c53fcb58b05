"""One child process: its own session, its output in a log file, a pid file beside it.

Knows nothing of what the child does; readiness is a predicate that the caller passes in.
Invariant: a child does not outlive the launcher (`exec_child`), and what a killed launcher left
for a moment is ended before the next start (`orphans`).
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from app.launcher import exec_child
from app.launcher.errors import ChildExitedError, ChildNotReadyError
from app.launcher.orphans import end_orphan, process_started_at

MAX_LOG_BYTES = 16 * 1024 * 1024
MAX_TAIL_BYTES = 16 * 1024
POLL_INTERVAL_S = 0.01


@dataclass(frozen=True, slots=True)
class ChildSpec:
    """How to run a child. `argv[0]` is an absolute path.

    `uid`, `gid`: the user to run as (-1: the launcher's). `stop_signal` asks for an orderly end
    and is followed by SIGKILL after `grace_s` seconds; `death_signal` is what the kernel sends
    when the launcher itself dies. `env` is the whole environment.
    """

    name: str
    argv: tuple[str, ...]
    log_path: Path
    pid_path: Path
    env: Mapping[str, str]
    cwd: Path | None = None
    uid: int = -1
    gid: int = -1
    stop_signal: signal.Signals = signal.SIGTERM
    death_signal: signal.Signals = signal.SIGKILL
    grace_s: float = 10.0


class ChildProcess:
    """A started child. `start` and `stop` are a pair; `stop` may be called twice."""

    def __init__(self, spec: ChildSpec) -> None:
        self.spec = spec
        self._process: subprocess.Popen[bytes] | None = None
        self._log_offset = 0

    @property
    def pid(self) -> int:
        """The process id; the child must have been started."""
        assert self._process is not None
        return self._process.pid

    def start(self) -> None:
        """Start the child, after ending what a killed launcher may have left under its name."""
        spec = self.spec
        assert self._process is None
        self.end_orphan()
        for path in (spec.log_path, spec.pid_path):
            path.parent.mkdir(parents=True, exist_ok=True)
        _rotate(spec.log_path)
        shim = (sys.executable, "-I", "-S", exec_child.__file__)
        tie = (os.getpid(), int(spec.death_signal), spec.uid, spec.gid)
        with open(spec.log_path, "ab", opener=_private) as log:
            self._log_offset = log.tell()
            self._process = subprocess.Popen(
                [*shim, *map(str, tie), *spec.argv],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=dict(spec.env),
                cwd=spec.cwd,
                start_new_session=True,
            )
        spec.pid_path.write_text(f"{self.pid} {process_started_at(self.pid)}\n")

    def end_orphan(self) -> None:
        """End what a killed launcher may have left running under this name."""
        end_orphan(self.spec.pid_path, self.spec.stop_signal, self.spec.grace_s)

    def wait_ready(self, is_ready: Callable[[], bool], timeout_s: float) -> None:
        """Wait until `is_ready()`.

        Raises ChildExitedError when the child ends first, ChildNotReadyError at the deadline.
        """
        deadline = time.monotonic() + timeout_s
        while not is_ready():
            self.check_running()
            if time.monotonic() > deadline:
                problem = f"was not ready within {timeout_s:g} s"
                raise ChildNotReadyError(
                    self.spec.name, problem, self.spec.log_path, self.log_tail()
                )
            time.sleep(POLL_INTERVAL_S)

    def wait_success(self, timeout_s: float) -> None:
        """Wait for a child that ends by itself.

        Raises ChildExitedError unless it ends with status 0, ChildNotReadyError at the deadline.
        """
        self.wait_ready(lambda: self._process is None or self._process.poll() == 0, timeout_s)

    def check_running(self) -> None:
        """Raise ChildExitedError if the child has ended."""
        if self._process is None or self._process.poll() is None:
            return
        status = self._process.returncode
        how = f"exit status {status}" if status >= 0 else signal.Signals(-status).name
        problem = f"ended unexpectedly ({how})"
        raise ChildExitedError(self.spec.name, problem, self.spec.log_path, self.log_tail())

    def stop(self) -> None:
        """Ask the child to end, wait at most `grace_s`, then kill it and its process group."""
        if self._process is None:
            return
        try:
            self._process.send_signal(self.spec.stop_signal)
            self._process.wait(self.spec.grace_s)
        except subprocess.TimeoutExpired:
            pass
        finally:
            self._kill_group()
            self._process.wait()
            self.spec.pid_path.unlink(missing_ok=True)
            self._process = None

    def log_tail(self, max_lines: int = 15) -> list[str]:
        """The last lines that this run of the child logged."""
        with self.spec.log_path.open("rb") as log:
            end = log.seek(0, os.SEEK_END)
            log.seek(max(self._log_offset, end - MAX_TAIL_BYTES))
            lines = log.read().decode("utf-8", errors="replace").splitlines()
        return lines[-max_lines:]

    def _kill_group(self) -> None:
        """Also what the child itself started; nothing, if it has ended and left none behind."""
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, signal.SIGKILL)


def _rotate(log_path: Path) -> None:
    """Keep one older log, so that a folder that serves for years does not fill."""
    if log_path.exists() and log_path.stat().st_size > MAX_LOG_BYTES:
        log_path.rename(log_path.with_name(f"{log_path.name}.old"))


def _private(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)


def server_environment() -> dict[str, str]:
    """What a third-party server gets of our environment: no secret, and nothing that steers it."""
    kept = ("PATH", "LD_LIBRARY_PATH", "TMPDIR")
    return {name: os.environ[name] for name in kept if name in os.environ} | {"LC_ALL": "C"}
