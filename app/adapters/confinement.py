"""What a process gives up before it looks at a tenant's bytes.

Knows nothing of adapters. Invariants: after `confine` this process reads the files it named and no
others, writes none, and neither connects, starts a process nor imports a module; it ends itself
when it takes more memory, processor time or wall time than it was given. There is no way back.

The kernel keeps the limits (setrlimit(2), alarm(2)) and, where it can, filters the system calls
(`app.adapters.syscall_filter`). What may be opened and called is kept by an audit hook (PEP 578),
which Python code cannot remove. What is not in the hook's list is denied.
"""

from __future__ import annotations

import resource
import signal
import sys
from collections.abc import Callable, Collection
from typing import Any

from app.adapters.syscall_filter import OPENS_TO_WRITE, filter_syscalls

STATUS_FILE = "/proc/self/status"
MAX_OPEN_FILES = 32

# Events that change nothing outside the process and read nothing from outside it.
_HARMLESS = frozenset(
    {
        "array.__new__",
        "builtins.id",
        "code.__new__",
        "gc.get_objects",
        "gc.get_referents",
        "gc.get_referrers",
        "mmap.__new__",
        "object.__delattr__",
        "object.__getattr__",
        "object.__setattr__",
        "sys._getframe",
        "sys.excepthook",
        "sys.unraisablehook",
    }
)

# What Jinja does with a template besides: it is turned into code within its sandbox, and run.
COMPILING = frozenset({"compile", "exec"})


class ForbiddenError(RuntimeError):
    """Something was tried that this process gave up."""


def confine(
    readable: Collection[str],
    *,
    memory_bytes: int,
    cpu_s: int,
    deadline_s: int,
    allowed: Collection[str] = (),
) -> bool:
    """Give up everything but reading the files `readable`, by exactly these paths.

    memory_bytes: address space beyond what the process has now.
    allowed: audit events that are harmless for what this process does.
    Returns whether the kernel filters its system calls too.
    """
    limits = {
        resource.RLIMIT_CPU: (cpu_s, cpu_s + 1),  # the first is told by SIGXCPU
        resource.RLIMIT_NOFILE: (MAX_OPEN_FILES, MAX_OPEN_FILES),
        resource.RLIMIT_FSIZE: (0, 0),
        resource.RLIMIT_CORE: (0, 0),
    }
    if address_space := _status(b"VmSize"):
        limits[resource.RLIMIT_AS] = (address_space + memory_bytes,) * 2
    for kind, pair in limits.items():
        resource.setrlimit(kind, pair)
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.alarm(deadline_s)
    is_filtered = filter_syscalls()
    sys.addaudithook(_hook(frozenset({*readable, STATUS_FILE}), _HARMLESS.union(allowed)))
    return is_filtered


def peak_bytes() -> int:
    """The most that was ever resident of this process: rusage would count its parent's too."""
    return _status(b"VmHWM")


def _hook(
    readable: frozenset[str], harmless: frozenset[str]
) -> Callable[[str, tuple[Any, ...]], None]:
    def check(event: str, args: tuple[Any, ...]) -> None:
        if event == "open":
            path, _, flags = args
            if path in readable and not flags & OPENS_TO_WRITE:
                return
        elif event in harmless:
            return
        what = f" ({args[0]})" if event == "import" else ""
        raise ForbiddenError(f"{event} is forbidden here{what}")

    return check


def _status(field: bytes) -> int:
    """A size from /proc, in bytes; 0 where there is no /proc."""
    try:
        with open(STATUS_FILE, "rb") as status:  # noqa: PTH123 (by exactly this path)
            for line in status:
                name, _, value = line.partition(b":")
                if name == field:
                    return int(value.split()[0]) << 10
    except FileNotFoundError:
        pass
    return 0
