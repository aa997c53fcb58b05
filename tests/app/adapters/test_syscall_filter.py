"""The filter of system calls says what it should on each machine: read here as the kernel reads it.

`tests/corpus/validation/test_confinement.py` has the kernel itself do so.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Sequence

import pytest

from app.adapters.syscall_filter import build_program

ALLOW, DENY, KILL = 0x7FFF0000, 0x00050001, 0x80000000
ARCH = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
PID = 4321
F_SETOWN, F_DUPFD_CLOEXEC = 8, 1030
# <asm/unistd.h> of each.
NUMBERS = {
    "x86_64": {
        "read": 0, "write": 1, "mmap": 9, "futex": 202, "exit_group": 231, "getrandom": 318,
        "openat": 257, "fcntl": 72, "tgkill": 234,
        "socket": 41, "connect": 42, "socketpair": 53, "clone": 56, "execve": 59, "kill": 62,
        "ptrace": 101, "setrlimit": 160, "prlimit64": 302, "execveat": 322, "openat2": 437,
        "io_uring_setup": 425, "clone3": 435, "pidfd_getfd": 438, "memfd_create": 319,
    },
    "aarch64": {
        "read": 63, "write": 64, "mmap": 222, "futex": 98, "exit_group": 94, "getrandom": 278,
        "openat": 56, "fcntl": 25, "tgkill": 131,
        "socket": 198, "connect": 203, "socketpair": 199, "clone": 220, "execve": 221, "kill": 129,
        "ptrace": 117, "setrlimit": 164, "prlimit64": 261, "execveat": 281, "openat2": 437,
        "io_uring_setup": 425, "clone3": 435, "pidfd_getfd": 438, "memfd_create": 279,
    },
}  # fmt: skip
HARMLESS = ("read", "write", "mmap", "futex", "exit_group", "getrandom")
FORBIDDEN = tuple(NUMBERS["x86_64"])[9:]
MACHINES = pytest.mark.parametrize("machine", ARCH)


def verdict(
    machine: str, number: int, arguments: Sequence[int] = (), arch: int | None = None
) -> int:
    """What the filter of the process PID returns for a call: a classic BPF machine's few words."""
    args = [*arguments, *[0] * (6 - len(arguments))]
    data = struct.pack("=iIQ6Q", number, ARCH[machine] if arch is None else arch, 0, *args)
    program = list(struct.iter_unpack("=HBBI", build_program(machine, PID)))
    place, loaded = 0, 0
    while True:
        code, if_so, if_not, value = program[place]
        place += 1
        if code == 0x06:
            return int(value)
        if code == 0x20:
            (loaded,) = struct.unpack_from("=I", data, value)
        elif code == 0x15:
            place += if_so if loaded == value else if_not
        elif code == 0x45:
            place += if_so if loaded & value else if_not
        else:
            raise AssertionError(f"no such instruction: {code:#x}")


@MACHINES
def test_what_a_check_needs_is_allowed(machine: str) -> None:
    found = {name: verdict(machine, NUMBERS[machine][name]) for name in HARMLESS}
    assert set(found.values()) == {ALLOW}, found


@MACHINES
def test_network_processes_signals_and_limits_are_denied(machine: str) -> None:
    found = {name: verdict(machine, NUMBERS[machine][name]) for name in FORBIDDEN}
    assert set(found.values()) == {DENY}, found


@MACHINES
def test_files_are_opened_to_be_read_alone(machine: str) -> None:
    openat = NUMBERS[machine]["openat"]
    assert verdict(machine, openat, (0, 0, os.O_RDONLY | os.O_CLOEXEC)) == ALLOW
    for flags in (os.O_WRONLY, os.O_RDWR, os.O_CREAT, os.O_TRUNC, os.O_APPEND):
        assert verdict(machine, openat, (0, 0, flags | os.O_CLOEXEC)) == DENY


@MACHINES
def test_a_process_signals_itself_alone_and_lets_nobody_be_signalled(machine: str) -> None:
    tgkill, fcntl = NUMBERS[machine]["tgkill"], NUMBERS[machine]["fcntl"]
    assert verdict(machine, tgkill, (PID, PID, 6)) == ALLOW
    assert verdict(machine, tgkill, (PID + 1, PID + 1, 9)) == DENY
    assert verdict(machine, fcntl, (3, F_DUPFD_CLOEXEC)) == ALLOW
    assert verdict(machine, fcntl, (3, F_SETOWN, 1)) == DENY


def test_calls_of_another_architecture_end_the_process() -> None:
    for machine, other in (("x86_64", 0x40000003), ("aarch64", 0x40000028), ("x86_64", 0)):
        assert verdict(machine, NUMBERS[machine]["read"], arch=other) == KILL
    # x32: the same architecture, other numbers.
    assert verdict("x86_64", 0x40000000 | NUMBERS["x86_64"]["socket"]) == DENY
