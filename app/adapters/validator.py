"""Has adapters checked by child processes, a few at a time: one adapter, one process.

Knows nothing of uploads or rows. Invariants: this process never reads a tenant's bytes; a child
gets no setting and no secret of its parent's, is killed after a deadline or when nobody waits for
it any more; a child that ended without an answer for what its bytes cost it is a refusal like any
other.
"""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Collection
from contextlib import suppress
from pathlib import Path

import msgspec
import structlog

from app.adapters.turns import MAX_AT_ONCE, Turns
from app.adapters.validation_messages import (
    DEADLINE_PER_CPU_S,
    LENGTH_BYTES,
    OUT_OF_MEMORY,
    STATUS_BYTES,
    Answer,
    Task,
)
from app.adapters.zygote import Zygote, ZygoteError
from lora.base_spec import BaseSpec
from lora.findings import Finding
from lora.limits import ManifestLimits
from lora.store import WEIGHTS_FILE

log = structlog.get_logger()

ZYGOTE = "app.adapters.validator_zygote"
STRUCTURE_CPU_S = 20
VALUES_CPU_S = 60
VALUES_BYTES_PER_CPU_S = 32 << 20
GRACE_S = 10.0  # to start and to be reaped

# How a child is ended that took too much.
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

    def __init__(self, max_children: int = MAX_AT_ONCE, zygote: str = ZYGOTE) -> None:
        """zygote: the module that makes the children; it is started when it is first needed."""
        self._zygote = Zygote(zygote)
        self._turns = Turns(max_children)

    async def check_structure(
        self,
        folder: Path,
        base: BaseSpec,
        limits: ManifestLimits,
        known_bases: Collection[str] = (),
    ) -> Answer:
        """What the configuration and the header of the two files in `folder` say.

        known_bases: names of other bases, of which the adapter must not be.
        """
        task = Task(
            folder=str(folder),
            base=base,
            limits=limits,
            known_bases=frozenset(known_bases),
            cpu_s=STRUCTURE_CPU_S,
        )
        return await self.run(task)

    async def check_values(
        self,
        folder: Path,
        base: BaseSpec,
        limits: ManifestLimits,
        model: Path | None,
        known_bases: Collection[str] = (),
    ) -> Answer:
        """The same, and what every number says. model: the base's folder, if its weights are here.

        Raises FileNotFoundError where the weights are not in `folder`.
        """
        num_bytes = (await asyncio.to_thread((folder / WEIGHTS_FILE).stat)).st_size
        task = Task(
            folder=str(folder),
            base=base,
            limits=limits,
            known_bases=frozenset(known_bases),
            reads_values=True,
            model=None if model is None else str(model),
            cpu_s=VALUES_CPU_S + num_bytes // VALUES_BYTES_PER_CPU_S,
        )
        return await self.run(task)

    async def run(self, task: Task) -> Answer:
        """Have a child do `task`.

        Raises ValidatorError where it failed for our own reasons, UnavailableError `overloaded`
        where it is not its turn in time.
        """
        async with self._turns.take():
            try:
                connection = await asyncio.to_thread(self._zygote.connect)
            except ZygoteError as error:
                raise ValidatorError("the validator does not run") from error
            reader, writer = await asyncio.open_unix_connection(sock=connection)
            data = msgspec.json.encode(task)
            try:
                async with asyncio.timeout(DEADLINE_PER_CPU_S * task.cpu_s + GRACE_S):
                    writer.write(len(data).to_bytes(LENGTH_BYTES, "big") + data)
                    said = await reader.read()
            except TimeoutError:
                return _refused("time")
            except ConnectionError as error:
                raise ValidatorError("no child could be made") from error
            finally:
                writer.close()  # a child that still works is killed then
                with suppress(ConnectionError):
                    await writer.wait_closed()
        return _answer(said)


def _answer(said: bytes) -> Answer:
    if len(said) < STATUS_BYTES:
        raise ValidatorError("the validator ended without a word")
    output, last = said[:-STATUS_BYTES], said[-STATUS_BYTES:]
    status = int.from_bytes(last, "big", signed=True)
    if status in _LIMITS:
        log.warning("validator_ended", status=status, limit=_LIMITS[status])
        return _refused(_LIMITS[status])
    try:
        answer = msgspec.json.decode(output, type=Answer)
    except msgspec.MsgspecError:
        log.error("validator_failed", status=status, said=output.decode(errors="replace"))
        raise ValidatorError(f"the validator's child ended with {status}") from None
    if not answer.is_filtered:
        log.warning("validator_unfiltered", reason="this system has no filter of system calls")
    return answer


def _refused(limit: str) -> Answer:
    finding = Finding(
        code="validation_limits_exceeded",
        severity="error",
        message=f"Checking the adapter took more {limit} than is allowed.",
    )
    return Answer(findings=(finding,))
