"""Processes that have imported everything before they are born: forks of one that waits.

`python -m tests.faults.nursery MODULE...` imports the modules, reads orders from stdin and says on
stdout who was born, and who ended and how; a line of JSON each. Knows nothing of what they do.
Invariants: a fork is made where there is no thread, connection or event loop, and runs the
module's own `main()` with an environment, arguments and a log of its own; none outlives stdin.
"""

from __future__ import annotations

import gc
import json
import os
import selectors
import signal
import socket
import sys
import traceback
from contextlib import suppress
from importlib import import_module
from typing import Any

MAINS = {"engine": "engine.server", "tests.stub_engine": "tests.stub_engine.process"}
"""Where `main()` is, of the packages that are run as such."""


def main() -> None:
    for name in sys.argv[1:]:
        import_module(MAINS.get(name, name))
    gc.freeze()
    woken, waking = socket.socketpair()
    for each in (woken, waking):
        each.setblocking(False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(waking.fileno(), warn_on_full_buffer=False)
    children: set[int] = set()
    try:
        serve(woken, children)
    finally:
        for pid in children:
            os.kill(pid, signal.SIGKILL)


def serve(woken: socket.socket, children: set[int]) -> None:
    """Until stdin ends."""
    unread = b""
    with selectors.DefaultSelector() as selector:
        selector.register(woken, selectors.EVENT_READ)
        selector.register(sys.stdin, selectors.EVENT_READ)
        say({"ready": os.getpid()})
        while True:
            ready = {key.fileobj for key, _ in selector.select()}
            if woken in ready:
                with suppress(BlockingIOError):
                    woken.recv(4096)
                bury(children)
            if sys.stdin in ready:
                read = os.read(sys.stdin.fileno(), 65536)
                if not read:
                    return
                *orders, unread = (unread + read).split(b"\n")
                for order in orders:
                    pid = bear(json.loads(order))
                    children.add(pid)
                    say({"born": pid})


def bear(order: dict[str, Any]) -> int:
    """The process id of who does what `order` says."""
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            status = live(order)
        except SystemExit as end:
            status = end.code if isinstance(end.code, int) else int(end.code is not None)
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(status)
    return pid


def live(order: dict[str, Any]) -> int:
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    os.setsid()
    log = os.open(order["log"], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    null = os.open(os.devnull, os.O_RDONLY)
    for source, target in ((null, 0), (log, 1), (log, 2)):
        os.dup2(source, target)
    os.environ.clear()
    os.environ.update(order["env"])
    module = order["module"]
    sys.argv = [module, *order["arguments"]]
    import_module(MAINS.get(module, module)).main()
    return 0


def bury(children: set[int]) -> None:
    """Say who has ended; a process that a signal has ended has that signal's negative."""
    while children:
        pid, status = os.waitpid(-1, os.WNOHANG)
        if pid == 0:
            return
        children.discard(pid)
        say({"ended": pid, "status": os.waitstatus_to_exitcode(status)})


def say(what: dict[str, int]) -> None:
    sys.stdout.write(json.dumps(what) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
