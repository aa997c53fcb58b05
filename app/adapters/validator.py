"""Has adapters checked by child processes, a few at a time: one adapter, one process.

Knows nothing of uploads or rows. Invariants: this process never reads a tenant's bytes; a child
gets no setting and no secret of its parent's, is killed after a deadline, and is always reaped; a
child that ended without an answer for what its bytes cost it is a refusal like any other.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from asyncio.subprocess import PIPE, Process
from pathlib import Path

import msgspec
import structlog

from app.adapters.validation_messages import Answer, Task
from app.adapters.validator_child import DEADLINE_PER_CPU_S, OUT_OF_MEMORY
from lora.base_spec import BaseSpec
from lora.findings import Finding
from lora.limits import ManifestLimits
from lora.store import WEIGHTS_FILE

log = structlog.get_logger()

STRUCTURE = "app.adapters.validator_child"
VALUES = "app.adapters.values_child"
MAX_CHILDREN = 2
STRUCTURE_CPU_S = 20
VALUES_CPU_S = 60
VALUES_BYTES_PER_CPU_S = 32 << 20
GRACE_S = 10.0  # to start and to be reaped

# What it takes to start Python here; the rest of the environment is none of a child's business.
_INHERITED = ("PATH", "PYTHONPATH", "LD_LIBRARY_PATH", "LANG", "LC_ALL", "HOME")
_ALONE = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
# How the kernel ends a child that took too much.
_LIMITS = {
    -signal.SIGXCPU: "processor time",
    -signal.SIGALRM: "time",
    -signal.SIGABRT: "memory",  # where C++ asked for it
    OUT_OF_MEMORY: "memory",
}


class ValidatorError(Exception):
    """A child ended without an answer, for no reason that its limits tell."""


class Validator:
    """Of one process. `max_children` run at once; more wait for their turn."""

    def __init__(self, max_children: int = MAX_CHILDREN) -> None:
        self._places = asyncio.Semaphore(max_children)

    async def check_structure(self, folder: Path, base: BaseSpec, limits: ManifestLimits) -> Answer:
        """What the configuration and the header of the two files in `folder` say."""
        task = Task(folder=str(folder), base=base, limits=limits, cpu_s=STRUCTURE_CPU_S)
        return await self.run(STRUCTURE, task)

    async def check_values(
        self, folder: Path, base: BaseSpec, limits: ManifestLimits, model: Path | None
    ) -> Answer:
        """The same, and what every number says. model: the base's folder, if its weights are here.

        Raises FileNotFoundError where the weights are not in `folder`.
        """
        num_bytes = (folder / WEIGHTS_FILE).stat().st_size
        task = Task(
            folder=str(folder),
            base=base,
            limits=limits,
            model=None if model is None else str(model),
            cpu_s=VALUES_CPU_S + num_bytes // VALUES_BYTES_PER_CPU_S,
        )
        return await self.run(VALUES, task)

    async def run(self, module: str, task: Task) -> Answer:
        """Have a child do `task`. Raises ValidatorError where it failed for our own reasons."""
        async with self._places:
            child = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", module),
                stdin=PIPE,
                stdout=PIPE,
                stderr=PIPE,
                env={name: os.environ[name] for name in _INHERITED if name in os.environ} | _ALONE,
                start_new_session=True,  # a terminal's Ctrl-C is for the parent
            )
            try:
                async with asyncio.timeout(DEADLINE_PER_CPU_S * task.cpu_s + GRACE_S):
                    output, said = await child.communicate(msgspec.json.encode(task))
            except TimeoutError:
                return _refused("time")
            finally:
                await _reap(child)
        return _answer(child.returncode, output, said)


async def _reap(child: Process) -> None:
    if child.returncode is None:
        child.kill()
        await child.wait()


def _answer(returncode: int | None, output: bytes, said: bytes) -> Answer:
    assert returncode is not None, "reaped"
    if returncode in _LIMITS:
        log.warning("validator_ended", status=returncode, limit=_LIMITS[returncode])
        return _refused(_LIMITS[returncode])
    try:
        return msgspec.json.decode(output, type=Answer)
    except msgspec.MsgspecError:
        log.error("validator_failed", status=returncode, said=said[-2000:].decode(errors="replace"))
        raise ValidatorError(f"the validator's child ended with {returncode}") from None


def _refused(limit: str) -> Answer:
    finding = Finding(
        code="validation_limits_exceeded",
        severity="error",
        message=f"Checking the adapter took more {limit} than is allowed.",
    )
    return Answer(findings=(finding,))
