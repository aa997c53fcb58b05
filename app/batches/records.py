"""What a worker reads and writes of the batch that it runs, and nothing without its claim.

Knows nothing of engines. Invariants: answers are sealed before they are written; counts, tokens and
answers change in one transaction; what a worker that lost its claim would write is not written.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass
from typing import Any

from sqlalchemy.ext.asyncio import AsyncSession

from app.batches.answers import LineAnswer
from app.batches.claims_repository import Claim, ClaimRepository
from app.batches.lines import Validation
from app.batches.lines_repository import LinesRepository, SealedAnswer
from app.batches.tables import Batch
from app.context import Clock
from app.db import Database, tenant_scope
from app.encryption import DataKey
from app.files.repository import FileRepository
from app.files.service import UPLOAD_LIMIT, body_of, lifetime, locator_of, new_file
from app.files.tables import StoredFile
from app.files.vault import FileVault, SealedBody
from app.ids import new_id
from app.settings import WorkerSettings

PAGE = 500


@dataclass(frozen=True, slots=True)
class BatchRecords:
    database: Database
    vault: FileVault
    settings: WorkerSettings
    claim: Claim
    now: Clock

    async def read(self) -> Batch:
        """Raises ClaimLostError."""
        async with self._locked() as (_, batch):
            return batch

    async def find_input(self, file_id: str) -> SealedBody | None:
        async with self._scoped() as session:
            file = await FileRepository(session, self.claim.tenant_id).get(file_id)
            return None if file is None else body_of(file)

    async def answered_numbers(self) -> set[int]:
        async with self._scoped() as session:
            return await self._lines(session).numbers()

    async def hold(self, seconds: float) -> str:
        """Keep the batch for longer; its status. Raises ClaimLostError."""
        async with self.database.session() as session:
            status = await ClaimRepository(session, self.claim).renew(seconds)
            await session.commit()
            return status

    async def release(self, rest_s: float) -> None:
        """Let others have it, in `rest_s` or later. Raises ClaimLostError."""
        async with self.database.session() as session:
            await ClaimRepository(session, self.claim).release(rest_s)
            await session.commit()

    async def begin(self, validation: Validation) -> None:
        """It was found to be in order, unless it has been cancelled. Raises ClaimLostError."""
        async with self._locked() as (session, batch):
            batch.num_total, batch.model = validation.num_lines, validation.model
            if batch.status == "validating":
                batch.status, batch.in_progress_at = "in_progress", self.now()
            await session.commit()

    async def fail(self, errors: list[dict[str, Any]]) -> None:
        """It cannot be run. Raises ClaimLostError."""
        async with self._locked() as (session, batch):
            batch.status, batch.failed_at, batch.errors = "failed", self.now(), errors
            await self._end(session)

    async def write(self, answers: Sequence[LineAnswer], key: DataKey) -> None:
        """Raises ClaimLostError."""
        if not answers:
            return
        sealed = [
            SealedAnswer(each.number, each.is_error, key.seal_record(_name(each), each.content))
            for each in answers
        ]
        async with self._locked() as (session, batch):
            added = await self._lines(session).add(sealed)
            for each in answers:
                if each.number in added:
                    _count(batch, each)
            await session.commit()

    async def finish(self, status: str, key: DataKey) -> None:
        """Write the two files, and end the batch as `completed`, `expired` or `cancelled`.

        Raises ClaimLostError.
        """
        async with self._locked() as (session, batch):
            if status == "completed":
                batch.status, batch.finalizing_at = "finalizing", self.now()
            await session.commit()
        output = await self._collect(batch, key, is_error=False)
        errors = await self._collect(batch, key, is_error=True)
        async with self._locked() as (session, batch):
            files = FileRepository(session, batch.tenant_id)
            for file in (output, errors):
                if file is not None:
                    await files.try_add(file)
            batch.output_file_id = None if output is None else output.id
            batch.error_file_id = None if errors is None else errors.id
            batch.status = status
            setattr(batch, f"{status}_at", self.now())
            await self._end(session)

    async def _end(self, session: AsyncSession) -> None:
        await session.flush()
        await self._lines(session).remove_all()
        await ClaimRepository(session, self.claim).end()
        await session.commit()

    async def _collect(self, batch: Batch, key: DataKey, *, is_error: bool) -> StoredFile | None:
        """A new file of the answers of one kind; None where there are none."""
        file_id = new_id("fil")
        locator = locator_of(batch.tenant_id, file_id)
        async with self._scoped() as session:
            if not await self._lines(session).count(is_error=is_error):
                return None
            files = FileRepository(session, batch.tenant_id)
            retention_days = await files.retention_days()
            await files.plan_removal(locator, self.now() + UPLOAD_LIMIT)
            await session.commit()
        contents = self._contents(key, is_error=is_error)
        async with aclosing(contents):
            body = await self.vault.put(locator, contents)
        return new_file(
            batch.tenant_id,
            file_id,
            body,
            filename=f"{batch.id}_{'error' if is_error else 'output'}.jsonl",
            purpose="batch_output",
            now=self.now(),
            lifetime=lifetime(self.settings, retention_days, batch.output_expires_after_s),
        )

    async def _contents(self, key: DataKey, *, is_error: bool) -> AsyncGenerator[bytes, None]:
        after = 0
        while True:
            async with self._scoped() as session:
                page = await self._lines(session).list_page(
                    is_error=is_error, after=after, limit=PAGE
                )
            if not page:
                return
            yield b"".join(key.open_record(_name(each), each.sealed) + b"\n" for each in page)
            after = page[-1].number

    @asynccontextmanager
    async def _locked(self) -> AsyncIterator[tuple[AsyncSession, Batch]]:
        async with self.database.session() as session:
            yield session, await ClaimRepository(session, self.claim).lock()

    @asynccontextmanager
    async def _scoped(self) -> AsyncIterator[AsyncSession]:
        async with self.database.session() as session:
            await tenant_scope(session, self.claim.tenant_id)
            yield session

    def _lines(self, session: AsyncSession) -> LinesRepository:
        return LinesRepository(session, self.claim.tenant_id, self.claim.batch_id)


def _name(answer: LineAnswer | SealedAnswer) -> str:
    """What a sealed answer is bound to: its line, and which file it is for."""
    return f"{answer.number}:{'error' if answer.is_error else 'output'}"


def _count(batch: Batch, answer: LineAnswer) -> None:
    if answer.is_error:
        batch.num_failed += 1
    else:
        batch.num_completed += 1
    if answer.usage is not None:
        batch.input_tokens += answer.usage.prompt_tokens
        batch.cached_tokens += answer.usage.prompt_tokens_details.cached_tokens
        batch.output_tokens += answer.usage.completion_tokens
        details = answer.usage.completion_tokens_details
        batch.reasoning_tokens += details.reasoning_tokens
