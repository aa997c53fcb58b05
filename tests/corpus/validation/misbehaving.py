"""`python -m tests.corpus.validation.misbehaving`: makes validator's children that go astray.

It is `app.adapters.validator_zygote` with another check of the numbers: it does what the name of
the adapter's folder says, and reports what came of it.
"""

from __future__ import annotations

import ctypes
import importlib
import os
import pickle
import select
import socket
import subprocess
from collections.abc import Callable
from pathlib import Path

from app.adapters.confinement import ForbiddenError
from app.adapters.validator_zygote import serve
from lora.base_files import BaseFiles
from lora.findings import Finding
from lora.manifest import AdapterManifest


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
    return [Finding("done", "warning", act)]


if __name__ == "__main__":
    serve(_go_astray)
