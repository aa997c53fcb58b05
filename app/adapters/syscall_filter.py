"""A filter of system calls: what a confined process may ask of the kernel, whatever code asks.

Knows nothing of what the process is for. The audit hook beside it (`app.adapters.confinement`)
hears what Python does; this holds for native code that has gone astray as well. Invariants: from
then on the process reads, writes to what it has open, takes memory, waits and ends; it makes no
socket, no process and no thread, becomes no other program, signals nobody but itself, opens nothing
to be written and changes no limit but its own timer. What is not listed is denied with EPERM, and a
call of another architecture ends the process. There is no way back. It does not say which files are
read: the kernel's filters follow no pointer.

Sources: seccomp(2) and its filter's data (linux/seccomp.h, linux/filter.h, linux/audit.h). Numbers
of calls, which never change: Linux, arch/x86/entry/syscalls/syscall_64.tbl for x86_64 and
include/uapi/asm-generic/unistd.h for aarch64.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import os
import struct
import sys
from dataclasses import dataclass

OPENS_TO_WRITE = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND

_MACHINES = ("x86_64", "aarch64")
_AUDIT_ARCH = {"x86_64": 0xC000_003E, "aarch64": 0xC000_00B7}

# name: number on each of `_MACHINES`; None where it has no such call.
_CALLS: dict[str, tuple[int | None, int | None]] = {
    # files that are open, or may be read
    "read": (0, 63),
    "write": (1, 64),
    "open": (2, None),
    "close": (3, 57),
    "stat": (4, None),
    "fstat": (5, 80),
    "lstat": (6, None),
    "lseek": (8, 62),
    "pread64": (17, 67),
    "readv": (19, 65),
    "writev": (20, 66),
    "sendto": (44, 206),
    "recvfrom": (45, 207),
    "fcntl": (72, 25),
    "getcwd": (79, 17),
    "readlink": (89, None),
    "openat": (257, 56),
    "newfstatat": (262, 79),
    "readlinkat": (267, 78),
    "statx": (332, 291),
    # memory
    "mmap": (9, 222),
    "mprotect": (10, 226),
    "munmap": (11, 215),
    "brk": (12, 214),
    "mremap": (25, 216),
    "madvise": (28, 233),
    # time, chance and waiting
    "poll": (7, None),
    "select": (23, None),
    "sched_yield": (24, 124),
    "nanosleep": (35, 101),
    "setitimer": (38, 103),
    "gettimeofday": (96, 169),
    "time": (201, None),
    "futex": (202, 98),
    "restart_syscall": (219, 128),
    "clock_gettime": (228, 113),
    "clock_nanosleep": (230, 115),
    "pselect6": (270, 72),
    "ppoll": (271, 73),
    "getrandom": (318, 278),
    # itself, and its end
    "rt_sigaction": (13, 134),
    "rt_sigprocmask": (14, 135),
    "rt_sigreturn": (15, 139),
    "getpid": (39, 172),
    "exit": (60, 93),
    "gettid": (186, 178),
    "exit_group": (231, 94),
    "tgkill": (234, 131),
}

# linux/filter.h: load a word, jump where equal, jump where a bit is set, return.
_LOAD, _IF_EQUAL, _IF_ANY_BIT, _RETURN = 0x20, 0x15, 0x45, 0x06
# struct seccomp_data: int nr; __u32 arch; __u64 instruction_pointer; __u64 args[6].
_NUMBER, _ARCH, _ARGUMENTS, _ARGUMENT_BYTES = 0, 4, 16, 8
_ALLOW, _DENY, _KILL = 0x7FFF_0000, 0x0005_0000 | errno.EPERM, 0x8000_0000
# linux/prctl.h
_PR_SET_SECCOMP, _PR_SET_NO_NEW_PRIVS, _MODE_FILTER = 22, 38, 2

_INSTRUCTION = struct.Struct("=HBBI")


@dataclass(frozen=True, slots=True)
class _Argument:
    """What an argument's low word must be: one of `values`, or without any bit of `without`."""

    place: int
    values: tuple[int, ...] = ()
    without: int = 0


class _Program(ctypes.Structure):
    """struct sock_fprog."""

    _fields_ = (("num_instructions", ctypes.c_ushort), ("instructions", ctypes.c_void_p))


def is_supported() -> bool:
    """Whether this kernel has filters, and this machine's calls are known. Changes nothing."""
    if sys.platform != "linux" or os.uname().machine not in _MACHINES:
        return False
    # No program at all: a kernel that has filters says that it cannot read it.
    return _prctl(_PR_SET_SECCOMP, _MODE_FILTER, None) == errno.EFAULT


def filter_syscalls() -> bool:
    """Hold this thread, which is to be the only one, to the list; False where that cannot be."""
    if not is_supported():
        return False
    program = build_program(os.uname().machine, os.getpid())
    instructions = ctypes.create_string_buffer(program, len(program))
    filters = _Program(
        len(program) // _INSTRUCTION.size, ctypes.cast(instructions, ctypes.c_void_p)
    )
    if _prctl(_PR_SET_NO_NEW_PRIVS, 1, None) != 0:
        return False
    return _prctl(_PR_SET_SECCOMP, _MODE_FILTER, ctypes.addressof(filters)) == 0


def build_program(machine: str, pid: int) -> bytes:
    """The filter of the process `pid`, as the kernel takes it: instructions of eight bytes."""
    arguments = {
        "open": _Argument(1, without=OPENS_TO_WRITE),
        "openat": _Argument(2, without=OPENS_TO_WRITE),
        "fcntl": _Argument(1, values=(fcntl.F_GETFD, fcntl.F_GETFL, fcntl.F_DUPFD_CLOEXEC)),
        "tgkill": _Argument(0, values=(pid,)),
    }
    code = [
        _instruction(_LOAD, _ARCH),
        _instruction(_IF_EQUAL, _AUDIT_ARCH[machine], if_so=1),
        _instruction(_RETURN, _KILL),
        _instruction(_LOAD, _NUMBER),
    ]
    place = _MACHINES.index(machine)
    for name, numbers in _CALLS.items():
        number = numbers[place]
        if number is not None:
            taken = _taken(arguments.get(name))
            code += [_instruction(_IF_EQUAL, number, if_not=len(taken)), *taken]
    return b"".join([*code, _instruction(_RETURN, _DENY)])


def _taken(argument: _Argument | None) -> list[bytes]:
    """What follows where a call is a listed one: it ends in any case."""
    allow, deny = _instruction(_RETURN, _ALLOW), _instruction(_RETURN, _DENY)
    if argument is None:
        return [allow]
    load = _instruction(_LOAD, _ARGUMENTS + _ARGUMENT_BYTES * argument.place)
    if argument.without:
        return [load, _instruction(_IF_ANY_BIT, argument.without, if_so=1), allow, deny]
    tests: list[bytes] = []
    for value in argument.values:
        tests += [_instruction(_IF_EQUAL, value, if_not=1), allow]
    return [load, *tests, deny]


def _instruction(code: int, value: int, *, if_so: int = 0, if_not: int = 0) -> bytes:
    """struct sock_filter. `if_so`, `if_not`: how many instructions a jump leaves out."""
    return _INSTRUCTION.pack(code, if_so, if_not, value)


def _prctl(option: int, value: int, address: int | None) -> int:
    """0, or the error's number."""
    libc = ctypes.CDLL(None, use_errno=True)
    libc.prctl.argtypes = (ctypes.c_int, ctypes.c_ulong, ctypes.c_void_p) + (ctypes.c_ulong,) * 2
    return 0 if libc.prctl(option, value, address, 0, 0) == 0 else ctypes.get_errno()
