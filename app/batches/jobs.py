"""The work of batches and files in a worker process: turns with batches, removals, keys anew.

Knows nothing of lines. Invariants: a dependency that is away only postpones; a batch that fails for
our own mistake holds up no other; told to stop, a worker begins nothing, and lets what runs end.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from contextlib import AsyncExitStack

import structlog
from prometheus_client import CollectorRegistry

from app.auth import verify_again
from app.batches.claims_repository import Claim, ClaimLostError, claim_batch
from app.batches.line_runner import LineRunner
from app.batches.records import BatchRecords
from app.batches.run import HOLD_S, TURN_S, BatchRun
from app.batches.serving import Serving, open_serving
from app.batches.tables import Batch
from app.context import Clock
from app.db import Database
from app.errors import ApiError, UnavailableError
from app.files.jobs import FileJobs
from app.files.vault import FileVault, open_vault
from app.metrics.answers import AnswerMetrics
from app.metrics.batches import BatchMetrics
from app.plans.limits import Kind
from app.repeating import rest
from app.settings import WorkerSettings

log = structlog.get_logger()

POLL_INTERVAL_S = 1.0
REMOVALS_AT_ONCE = 100
REWRAP_INTERVAL_S = 3600.0


class BatchJobs:
    """`run` until told to stop. One per worker process; several do no harm."""

    def __init__(
        self,
        database: Database,
        settings: WorkerSettings,
        now: Clock,
        *,
        turn_s: float = TURN_S,
        answers: AnswerMetrics | None = None,
        metrics: BatchMetrics | None = None,
    ) -> None:
        """answers: counts what comes of the lines. metrics: of the batches."""
        self._answers = answers
        self._metrics = metrics or BatchMetrics(CollectorRegistry())
        self._database = database
        self._settings = settings
        self._now = now
        self._turn_s = turn_s
        self._name = f"worker-{secrets.token_hex(6)}"
        self._turns: set[asyncio.Task[None]] = set()
        self._serving: Serving | None = None

    async def run(self, stopping: asyncio.Event) -> None:
        """Whatever is due. Returns at once where the settings know of no files."""
        vault = open_vault(self._settings)
        if vault is None:
            log.info("files_not_enabled")
            return
        files = FileJobs(self._database, vault, self._now)
        rewrap_at = 0.0
        async with AsyncExitStack() as stack:
            try:
                while not stopping.is_set():
                    try:
                        await self._begin_turns(stack, vault, stopping)
                        await _remove_due(files)
                        if time.monotonic() >= rewrap_at:
                            await files.rewrap()
                            rewrap_at = time.monotonic() + REWRAP_INTERVAL_S
                    except UnavailableError as error:
                        log.warning("batches_postponed", error=str(error))
                    await rest(stopping, POLL_INTERVAL_S)
                if self._turns:
                    await asyncio.wait(self._turns)
            finally:
                for turn in self._turns:
                    turn.cancel()
                await asyncio.gather(*self._turns, return_exceptions=True)

    async def _begin_turns(
        self, stack: AsyncExitStack, vault: FileVault, stopping: asyncio.Event
    ) -> None:
        while len(self._turns) < self._settings.max_batches:
            async with self._database.session() as session:
                claim = await claim_batch(session, self._name, HOLD_S)
                await session.commit()
            if claim is None:
                return
            if self._serving is None:  # not before there is something to run
                self._serving = await stack.enter_async_context(
                    open_serving(self._settings, self._now, self._answers)
                )
            turn = asyncio.create_task(
                self._take_turn(claim, self._serving, vault, stopping), name=claim.batch_id
            )
            self._turns.add(turn)
            turn.add_done_callback(self._turns.discard)

    async def _take_turn(
        self, claim: Claim, serving: Serving, vault: FileVault, stopping: asyncio.Event
    ) -> None:
        """It ends by itself, and nothing that it meets ends anything else."""
        try:
            records = BatchRecords(self._database, vault, self._settings, claim, self._now)
            batch = await records.read()
            run = BatchRun(
                records=records,
                runner=self._runner(claim, batch, serving),
                stopping=stopping,
                width=await self._width(batch, serving),
                max_line_bytes=serving.context.settings.max_body_bytes,
                metrics=self._metrics,
                turn_s=self._turn_s,
            )
            await run.run()
        except (UnavailableError, ClaimLostError) as error:
            log.warning("batch_turn_ended", batch_id=claim.batch_id, error=str(error))
        except Exception:  # the claim runs out, and the batch has another turn
            log.exception("batch_turn_failed", batch_id=claim.batch_id)

    def _runner(self, claim: Claim, batch: Batch, serving: Serving) -> LineRunner:
        return LineRunner(
            context=serving.context,
            acceptance=serving.acceptance,
            take_back=serving.take_back,
            batch_id=batch.id,
            tenant_id=batch.tenant_id,
            key_id=batch.key_id,
            endpoint=batch.endpoint,
            num_claims=claim.num_claims,
            winding_up=asyncio.Event(),
        )

    async def _width(self, batch: Batch, serving: Serving) -> int:
        """Lines at a time: at most half of what the tenant may have in flight, or waiting."""
        width = self._settings.batch_concurrency
        try:
            principal = await verify_again(serving.context, batch.tenant_id, batch.key_id)
        except ApiError:  # its lines will find out, each for itself
            return width
        for kind in (Kind.CONCURRENCY, Kind.QUEUE_DEPTH):
            smallest = principal.terms.smallest(kind)
            if smallest is not None:
                width = min(width, max(1, smallest // 2))
        return width


async def _remove_due(files: FileJobs) -> None:
    for _ in range(REMOVALS_AT_ONCE):
        if not await files.remove_next():
            return
