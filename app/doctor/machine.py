"""Looks at this machine: GPU, limits of the process, disks.

Knows nothing of Tenfold's parts. Invariant: it starts nothing but `nvidia-smi`, and waits for that
no longer than `SMI_TIMEOUT_S`.
"""

from __future__ import annotations

import os
import resource
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

from app.adapters.syscall_filter import is_supported
from app.doctor.findings import Finding, fail, ok, skip, warn

SMI_TIMEOUT_S = 10.0
MIN_OPEN_FILES = 4096
MIN_FREE_BYTES = 2 << 30
MIN_SHM_BYTES = 64 << 20
QUERY = "name,memory.total,driver_version"


def run_smi() -> str | None:
    """What nvidia-smi says of every GPU, a line each; None where it is not there, or fails."""
    try:
        done = subprocess.run(
            ["nvidia-smi", f"--query-gpu={QUERY}", "--format=csv,noheader"],
            capture_output=True,
            text=True,
            timeout=SMI_TIMEOUT_S,
            check=True,
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip()


def look_at_machine(
    data_dir: Path,
    smi: Callable[[], str | None] = run_smi,
    filters_syscalls: Callable[[], bool] = is_supported,
) -> Iterator[Finding]:
    yield _gpu(smi)
    yield _syscall_filter(filters_syscalls())
    yield _open_files(resource.getrlimit(resource.RLIMIT_NOFILE)[0])
    yield _cores()
    yield _shared_memory(Path("/dev/shm"))
    yield look_at_folder("data-dir", data_dir, "TENFOLD_DATA_DIR")


def _gpu(smi: Callable[[], str | None]) -> Finding:
    said = smi()
    if not said:
        return skip("gpu", "no NVIDIA GPU is seen here: an engine on this machine uses the CPU")
    return ok("gpu", "; ".join(said.splitlines()))


def _syscall_filter(is_there: bool) -> Finding:
    """Of the processes that read what tenants upload."""
    if not is_there:
        return warn(
            "syscall-filter",
            "this system filters no system calls: limits and Python's own audit hook alone confine "
            "the processes that read tenants' files",
            "run API and worker on Linux, x86_64 or aarch64, where seccomp is allowed",
        )
    return ok("syscall-filter", "the kernel confines the processes that read tenants' files")


def _open_files(limit: int) -> Finding:
    if limit != resource.RLIM_INFINITY and limit < MIN_OPEN_FILES:
        return warn(
            "open-files",
            f"this process may have {limit} files open",
            f"raise it, to {4 * MIN_OPEN_FILES} (ulimit -n, LimitNOFILE): every stream is one",
        )
    return ok("open-files", "unlimited" if limit == resource.RLIM_INFINITY else str(limit))


def _cores() -> Finding:
    return ok("cores", f"{len(os.sched_getaffinity(0))} that this process may use")


def _shared_memory(folder: Path) -> Finding:
    try:
        total = shutil.disk_usage(folder).total
    except OSError:
        return skip("shared-memory", f"{folder} is not there")
    if total < MIN_SHM_BYTES:
        return warn(
            "shared-memory",
            f"{folder} holds {total >> 20} MiB",
            "mount a larger one (in the chart: engine.sharedMemory)",
        )
    return ok("shared-memory", f"{total >> 20} MiB")


def look_at_folder(check: str, folder: Path, variable: str) -> Finding:
    """Whether files can be written to a folder, or to the one where it will be made."""
    place = folder
    while not place.exists() and place != place.parent:
        place = place.parent
    if not place.is_dir() or not os.access(place, os.W_OK | os.X_OK):
        todo = f"let this user write there, or set {variable} to another folder"
        return fail(check, f"{folder} cannot be written to", todo)
    free = shutil.disk_usage(place).free
    if free < MIN_FREE_BYTES:
        return warn(check, f"{folder} has {free >> 20} MiB left", "make room")
    return ok(check, f"{folder}, {free >> 30} GiB left")
