"""This side of a process that makes processes (`app.adapters.forking`): starts it, and asks it.

Knows nothing of what its children do. Invariants: it is started when it is first needed, and anew
where it died; it and its children get no setting and no secret of this process; it ends when this
object is gone.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
import weakref

# What it takes to start Python here; the rest of the environment is none of a child's business.
_INHERITED = (
    *("PATH", "PYTHONPATH", "LD_LIBRARY_PATH", "LANG", "LC_ALL", "HOME", "TZ"),
    "TMPDIR",  # in a pod it is the only place to write to
)
_ALONE = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
END_S = 10.0  # to end by itself and to be reaped


class ZygoteError(Exception):
    """No child can be made."""


class Zygote:
    """Makes children that run `module`. Blocking, though not for long; safe from any thread."""

    def __init__(self, module: str) -> None:
        self._module = module
        self._starting = threading.Lock()
        self._running: _Running | None = None

    def connect(self) -> socket.socket:
        """This end of a connection to a child that is about to be made. Raises ZygoteError."""
        with self._starting:
            if self._running is None or not self._running.is_alive:
                self._running = _Running(self._module)
            return self._running.connect()

    def close(self) -> None:
        """End it; its children end when their connections do."""
        with self._starting:
            running, self._running = self._running, None
        if running is not None:
            running.close()


class _Running:
    """The process. It ends when this object is gone."""

    def __init__(self, module: str) -> None:
        self._control, theirs = socket.socketpair()
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-m", module],
                stdin=theirs.fileno(),
                stdout=subprocess.DEVNULL,
                env={name: os.environ[name] for name in _INHERITED if name in os.environ} | _ALONE,
                start_new_session=True,  # a terminal's Ctrl-C is for the parent
            )
        self.close = weakref.finalize(self, _end, self._control, self._process)

    @property
    def is_alive(self) -> bool:
        return self._process.poll() is None

    def connect(self) -> socket.socket:
        ours, theirs = socket.socketpair()
        with theirs:
            try:
                socket.send_fds(self._control, [b"t"], [theirs.fileno()])
            except OSError as error:
                ours.close()
                raise ZygoteError("the process that makes processes does not run") from error
        return ours


def _end(control: socket.socket, process: subprocess.Popen[bytes]) -> None:
    control.close()
    try:
        process.wait(END_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
