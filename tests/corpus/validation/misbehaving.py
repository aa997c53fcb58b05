"""`python -m tests.corpus.validation.misbehaving`: makes validator's children that go astray.

It is `app.adapters.validator_zygote` with another check of the numbers: it does what the name of
the adapter's folder says, and reports what came of it.
"""

from __future__ import annotations

import ctypes
import importlib
import os
import pickle
import resource
import select
import socket
import subprocess
from collections.abc import Callable
from errno import EPERM
from pathlib import Path

from app.adapters.confinement import ForbiddenError
from app.adapters.validator_zygote import serve
from lora.base_files import BaseFiles
from lora.findings import Finding
from lora.manifest import AdapterManifest

# Numbers of calls on x86_64 and aarch64: of what Python would tell its audit hook.
NUMBERS = {
    "openat": (257, 56),
    "socket": (41, 198),
    "execve": (59, 221),
    "kill": (62, 129),
    "prlimit64": (302, 261),
}
LIBC = ctypes.CDLL(None)
ASK = LIBC.syscall
ERRNO = LIBC.__errno_location
ERRNO.restype = ctypes.POINTER(ctypes.c_int)
TRUE = b"/bin/true"
ARGUMENTS = (ctypes.c_char_p * 2)(TRUE, None)
MACHINE = ("x86_64", "aarch64").index(os.uname().machine)


class DeniedError(Exception):
    """The kernel did."""


def _raw(name: str, *arguments: int | bytes | ctypes.Array[ctypes.c_char_p] | None) -> None:
    """Ask the kernel, as native code does: no audit hook hears of it."""
    if ASK(NUMBERS[name][MACHINE], *arguments) == -1:
        raise DeniedError(name) if ERRNO()[0] == EPERM else OSError(ERRNO()[0], name)


def _spin() -> None:
    while True:
        pass


ACTS: dict[str, Callable[[], object]] = {
    "nothing": lambda: None,
    "socket": socket.socket,
    "resolve": lambda: socket.getaddrinfo(b"127.0.0.1", 80),
    "spawn": lambda: subprocess.run(["true"], check=True),
    "fork": os.fork,
    "exec": lambda: os.execv("/bin/true", ["true"]),
    "system": lambda: os.system("true"),
    "import": lambda: __import__("tabnanny"),
    "import by name": lambda: importlib.import_module("tabnanny"),
    "unpickle": lambda: pickle.loads(b"cbuiltins\nprint\n."),
    "evaluate": lambda: eval("1 + 1"),
    "read": lambda: Path("/etc/passwd").read_bytes(),
    "write": lambda: Path("/tmp/written-by-a-validator").write_bytes(b""),
    "list": lambda: os.listdir("/"),  # noqa: PTH208
    "remove": lambda: os.remove("/tmp/not-there"),  # noqa: PTH107
    "kill": lambda: os.kill(os.getppid(), 0),
    "ctypes": lambda: ctypes.CDLL(None),
    "raw socket": lambda: _raw("socket", socket.AF_INET, socket.SOCK_STREAM, 0),
    "raw execve": lambda: _raw("execve", TRUE, ARGUMENTS, None),
    "raw kill": lambda: _raw("kill", os.getppid(), 0),
    "raw openat": lambda: _raw("openat", 0, b"/dev/null", os.O_WRONLY, 0),
    "raw prlimit64": lambda: _raw("prlimit64", 0, resource.RLIMIT_CPU, None, None),
    "memory": lambda: bytearray(2 << 30),
    "spin": _spin,
    "wait": lambda: select.select([], [], [], 600),
    "abort": os.abort,
    "exit": lambda: os._exit(3),
}


def _go_astray(
    weights: Path, manifest: AdapterManifest, base_files: BaseFiles | None
) -> list[Finding]:
    act = weights.parent.name
    try:
        ACTS[act]()
    except ForbiddenError as error:
        return [Finding("forbidden", "warning", str(error))]
    except DeniedError as error:
        return [Finding("denied", "warning", str(error))]
    return [Finding("done", "warning", act)]


def main() -> None:
    serve(_go_astray)


if __name__ == "__main__":
    main()
