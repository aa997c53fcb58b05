"""`python -m app.adapters.validator_zygote`: makes a fresh process for each adapter to be checked.

Started once; it has loaded all that a check needs (`app.adapters.rehearsal`), so that a process
costs a fork and not half a second of imports. Knows nothing of adapters. A connection comes for
each task over the socket that is stdin; a *keeper* is forked for it, which forks the worker
(`app.adapters.validator_child`), waits for its end, and says with which status it came. Invariants:
neither this process nor a keeper reads a tenant's byte; a worker whose asker is gone is killed; all
end when stdin does.
"""

from __future__ import annotations

import os
import select
import signal
from functools import partial

from app.adapters.forking import serve_connections
from app.adapters.rehearsal import rehearse
from app.adapters.validation_messages import FAILED, LENGTH_BYTES, OUT_OF_MEMORY, STATUS_BYTES
from app.adapters.validator_child import ValueCheck, check_numbers, work

MAX_SAID_BYTES = 2000
_POLL_S = 0.01  # where the system cannot tell when a process ends


def serve(check: ValueCheck) -> None:
    """Take connections until whoever started this is gone."""
    rehearse()
    serve_connections(partial(_keep, check=check))


def _keep(connection: int, check: ValueCheck) -> None:
    """Have one task done, and tell how its worker ended."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    data = _read(connection, int.from_bytes(_read(connection, LENGTH_BYTES), "big"))
    worker = os.fork()
    if worker == 0:
        _work(connection, data, check)
    status = os.waitstatus_to_exitcode(_wait(worker, connection))
    _write(connection, status.to_bytes(STATUS_BYTES, "big", signed=True))


def _work(connection: int, data: bytes, check: ValueCheck) -> None:
    """Never returns: what runs at a regular exit may want what is forbidden by then."""
    output, status = b"", 0
    try:
        output = work(data, check)
    except MemoryError:
        status = OUT_OF_MEMORY
    except Exception as error:  # the edge of a process
        output, status = repr(error).encode(errors="replace")[:MAX_SAID_BYTES], FAILED
    _write(connection, output)
    os._exit(status)


def _wait(worker: int, connection: int) -> int:
    """The worker's status; it is killed as soon as nobody listens any more."""
    ended = _open_process(worker)
    watched = [connection] if ended is None else [connection, ended]
    while True:
        readable, _, _ = select.select(watched, [], [], _POLL_S if ended is None else None)
        if connection in readable:  # nothing more is sent: it is the end
            os.kill(worker, signal.SIGKILL)
            watched.remove(connection)
        pid, status = os.waitpid(worker, os.WNOHANG)
        if pid == worker:
            return status


def _open_process(pid: int) -> int | None:
    """What becomes readable when it ends; None where the system has no such thing."""
    try:
        return os.pidfd_open(pid)
    except (AttributeError, OSError):
        return None


def _read(connection: int, num_bytes: int) -> bytes:
    data = b""
    while len(data) < num_bytes:
        part = os.read(connection, num_bytes - len(data))
        if not part:
            os._exit(0)  # whoever asked is gone
        data += part
    return data


def _write(connection: int, data: bytes) -> None:
    while data:
        data = data[os.write(connection, data) :]


def main() -> None:
    serve(check_numbers)


if __name__ == "__main__":
    main()
