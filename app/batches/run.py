"""One worker's turn with one batch: check its input, run its lines, write its files.

Knows nothing of processes. Invariants: what is written down is not run again, whoever comes next;
a turn ends when the batch has, when its time is up, when it is cancelled or the worker is told to
stop, or when it would only wait; then the lines that run come to their end, and others may have it.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Sequence, Sized
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Any

import structlog

from app.batches.answers import LineAnswer, never_run
from app.batches.claims_repository import ClaimLostError
from app.batches.line_runner import LineRunner, PostponedError
from app.batches.lines import InputLine, LineError, Validation, read_line
from app.batches.patience import Patience
from app.batches.records import BatchRecords
from app.batches.tables import Batch
from app.encryption import DataKey, SealBrokenError
from app.errors import UnavailableError
from app.files.vault import SealedBody
from app.metrics.batches import BatchMetrics, Turn

log = structlog.get_logger()

HOLD_S = 6.0
LOOK_INTERVAL_S = 1.0
TURN_S = 120.0
DRAIN_S = 20.0
MAX_REST_S = 60.0
EXPIRED_CHUNK = 500
RETRY_S = 0.5
_UNREADABLE = LineError("file_unreadable", "The input file is gone, or cannot be read.")
_EXPIRED = ("batch_expired", "The batch expired before this line was run.")


class _LineUnreadableError(Exception):
    """A line that was in order when the batch was checked is not now: a limit has been lowered."""

    def __init__(self, shown: dict[str, Any]) -> None:
        super().__init__(shown["code"])
        self.shown = shown


@dataclass(slots=True)
class BatchRun:
    """`stopping` is set when the worker is to end; `width`: lines at a time."""

    records: BatchRecords
    runner: LineRunner
    stopping: asyncio.Event
    width: int
    max_line_bytes: int
    metrics: BatchMetrics
    turn_s: float = TURN_S
    _is_cancelled: bool = False
    _rest_s: float = 0.0
    _ends_at: float = 0.0
    _key: DataKey | None = field(default=None, repr=False)
    _turn: Turn = field(default_factory=Turn)

    async def run(self) -> None:
        """Raises UnavailableError without registry: the claim then runs out by itself."""
        with self.metrics.turn() as self._turn:
            await self._take_turn()

    async def _take_turn(self) -> None:
        self._ends_at = time.monotonic() + self.turn_s
        holding = asyncio.create_task(self._hold(), name="batch-hold")
        working = asyncio.create_task(self._work(), name="batch-work")
        try:
            await asyncio.wait((holding, working), return_when=asyncio.FIRST_COMPLETED)
            (working if working.done() else holding).result()
            if not working.done():
                await _end(working)
                await self._release()
        except ClaimLostError:
            log.warning("batch_lost", batch_id=self.runner.batch_id)
        finally:
            await _end(holding)
            await _end(working)

    async def _hold(self) -> None:
        """Keep the claim, and notice what ends the turn. Returns when the worker has to end."""
        held_at, renew_at, stopped_at = time.monotonic(), 0.0, None
        while True:
            now = time.monotonic()
            if now >= renew_at:
                try:
                    self._is_cancelled |= await self.records.hold(HOLD_S) == "cancelling"
                    held_at, renew_at = now, now + HOLD_S / 5
                except UnavailableError:
                    if now - held_at >= HOLD_S:
                        raise
            if self.stopping.is_set():
                stopped_at = stopped_at or now
                if now - stopped_at >= DRAIN_S:
                    return
            if self._is_cancelled or self.stopping.is_set() or now >= self._ends_at:
                self.runner.winding_up.set()
            await asyncio.sleep(LOOK_INTERVAL_S)

    async def _work(self) -> None:
        batch = await self.records.read()
        keys = self.records.vault.keys
        body = await self.records.find_input(batch.input_file_id)
        try:
            key = keys.unwrap(batch.id, batch.wrapped_key)
            if body is None:
                raise FileNotFoundError(batch.input_file_id)
            if batch.status == "validating":
                if not await self._validate(batch, body):
                    return
                batch = await self.records.read()
            await self._go_on(batch, body, key)
        except FileNotFoundError:
            log.error("batch_input_gone", batch_id=batch.id)
            await self._fail([_UNREADABLE.shown(None)])
        except _LineUnreadableError as error:
            log.error("batch_line_unreadable", batch_id=batch.id, line=error.shown["line"])
            await self._fail([error.shown])
        except SealBrokenError as error:  # perhaps an envelope key was taken away too soon
            log.error("batch_not_opened", batch_id=batch.id, error=str(error))
            if self._has_expired(batch):
                await self._fail([_UNREADABLE.shown(None)])
            else:
                await self.records.release(MAX_REST_S)

    async def _validate(self, batch: Batch, body: SealedBody) -> bool:
        validation = Validation(batch.endpoint, self.max_line_bytes)
        async with aclosing(self.records.vault.lines(body, self.max_line_bytes)) as raw_lines:
            number = 0
            async for raw in raw_lines:
                number += 1
                if raw.strip():
                    validation.take(number, raw)
                if validation.is_hopeless:
                    break
        errors = validation.finish()
        if errors:
            await self._fail(errors)
            log.info("batch_failed", batch_id=batch.id, num_errors=len(errors))
            return False
        await self.records.begin(validation)
        return True

    async def _go_on(self, batch: Batch, body: SealedBody, key: DataKey) -> None:
        self._key = key
        self._is_cancelled |= batch.status == "cancelling"
        status = "completed"
        if batch.status == "in_progress":
            answered = await self.records.answered_numbers()
            await self._run_lines(batch, body, answered)
            if self._is_cancelled:
                status = "cancelled"
            elif len(answered) < batch.num_total:
                if not self._has_expired(batch):
                    await self._release()
                    return
                await self._expire_rest(batch, body, answered)
                status = "expired"
        elif self._is_cancelled:
            status = "cancelled"
        await self.records.finish(status, key)
        self.metrics.ended(status)
        log.info("batch_ended", batch_id=batch.id, status=status)

    async def _fail(self, errors: list[dict[str, Any]]) -> None:
        await self.records.fail(errors)
        self.metrics.ended("failed")

    async def _run_lines(self, batch: Batch, body: SealedBody, answered: set[int]) -> None:
        """Run what is not in `answered` and add it there, until the turn ends."""
        running: dict[asyncio.Task[LineAnswer], int] = {}
        try:
            async with aclosing(self._lines(batch, body, answered)) as lines:
                async for line in lines:
                    while len(running) >= self.width:
                        await self._take(running, answered)
                    if self.runner.winding_up.is_set() or self._has_expired(batch):
                        break
                    task = asyncio.create_task(self.runner.run(line, Patience(batch.expires_at)))
                    running[task] = line.number
                    self._note(batch, running, answered)
            while running:
                await self._take(running, answered)
                self._note(batch, running, answered)
        finally:
            for task in running:
                task.cancel()
            await asyncio.gather(*running, return_exceptions=True)

    async def _take(self, running: dict[asyncio.Task[LineAnswer], int], answered: set[int]) -> None:
        """Wait for an answer, and write down all that there are: others go on meanwhile."""
        done, _ = await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
        answers = []
        for task in done:
            del running[task]
            try:
                answers.append(task.result())
            except PostponedError as error:
                self._rest_s = max(self._rest_s, error.wait_s)
                self.runner.winding_up.set()
        await self._write(answers)
        answered |= {answer.number for answer in answers}

    async def _write(self, answers: Sequence[LineAnswer]) -> None:
        """Written, or the claim is lost: a registry that is away for less is waited for."""
        assert self._key is not None
        while True:
            try:
                await self.records.write(answers, self._key)
                break
            except UnavailableError:
                await asyncio.sleep(RETRY_S)
        num_failed = sum(answer.is_error for answer in answers)
        self.metrics.answered(len(answers) - num_failed, num_failed)

    def _note(self, batch: Batch, running: Sized, answered: Sized) -> None:
        self._turn.num_running = len(running)
        self._turn.num_waiting = batch.num_total - len(answered) - len(running)

    async def _expire_rest(self, batch: Batch, body: SealedBody, answered: set[int]) -> None:
        answers: list[LineAnswer] = []
        async with aclosing(self._lines(batch, body, answered)) as lines:
            async for line in lines:
                answers.append(never_run(batch.id, line, *_EXPIRED))
                if len(answers) >= EXPIRED_CHUNK:
                    await self._write(answers)
                    answers = []
        await self._write(answers)

    async def _lines(
        self, batch: Batch, body: SealedBody, answered: set[int]
    ) -> AsyncGenerator[InputLine, None]:
        """Raises _LineUnreadableError."""
        async with aclosing(self.records.vault.lines(body, self.max_line_bytes)) as raw_lines:
            number = 0
            async for raw in raw_lines:
                number += 1
                if not raw.strip() or number in answered:
                    continue
                try:
                    line = read_line(number, raw, batch.endpoint, self.max_line_bytes)
                except LineError as error:
                    raise _LineUnreadableError(error.shown(number)) from error
                yield line

    async def _release(self) -> None:
        await self.records.release(min(self._rest_s, MAX_REST_S))

    def _has_expired(self, batch: Batch) -> bool:
        return self.records.now() >= batch.expires_at


async def _end(task: asyncio.Task[None]) -> None:
    """Cancel the task and wait until it has cleaned up; what it says is not heard."""
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
