"""The few lines that run between fork and exec of a child: `python -I -S exec_child.py ...`.

A file of its own, started with a bare interpreter, because Python code between fork and exec is
not safe once the parent has threads. Knows nothing but the standard library.

Invariant (Linux): when the thread that started the child dies, however it dies, the kernel sends
the child its death signal. So the starter must be a thread that lives as long as the launcher.

Arguments: PARENT_PID DEATH_SIGNAL UID GID PROGRAM [ARGUMENT ...]; UID -1 keeps the user.
"""

import ctypes
import os
import sys

PR_SET_PDEATHSIG = 1


def main(argv: list[str]) -> None:
    """Drop privileges, tie this process to its parent's life, become PROGRAM."""
    parent_pid, death_signal, uid, gid = (int(value) for value in argv[1:5])
    program = argv[5:]
    os.umask(0o077)
    if uid >= 0:
        os.setgroups([])
        os.setgid(gid)
        os.setuid(uid)
    if sys.platform == "linux":
        # After setuid: the kernel forgets the setting when the user changes.
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, death_signal, 0, 0, 0)
        if os.getppid() != parent_pid:
            sys.exit("the launcher is gone")
    os.execv(program[0], program)


if __name__ == "__main__":
    main(sys.argv)
