"""The API's end of the queue: submit requests, follow their output, abort them.

Async, one per process. Knows nothing of HTTP or text. Invariant: every submitted request's stream
ends (finished, failed or closed), also where Redis or its engine is gone; what nobody waits for is
aborted, and what this process ended, not an engine, is reported for the ledger. `watch.py` holds
the rules by which a silent stream moves to another engine (`failover.py`) or is given up.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping
from itertools import islice
from typing import Any, cast

import structlog

from engine.messages import EngineRequest, TokenOutput
from engine.transport import keys
from engine.transport.codec import Codec
from engine.transport.connection import open_async_redis, translated_errors
from engine.transport.demand import SAMPLE_SIZE, Demand, demand_of
from engine.transport.errors import MessageDecodeError, QueueUnavailableError
from engine.transport.failover import Failover, abort_args, enqueue_args
from engine.transport.liveness import ApiHeartbeat
from engine.transport.load import QueueLoad
from engine.transport.output_stream import OutputStream
from engine.transport.reports import UsageReporter, record_of_stream, record_of_unsubmitted
from engine.transport.scripts import read_script
from engine.transport.watch import Watch

log = structlog.get_logger(__name__)

MAX_CONNECTIONS = 32
READ_BLOCK_MS = 1000
READ_COUNT = 256
MAX_ABORTS_AT_ONCE = 200
WATCH_INTERVAL_S = 0.25
RETRY_S = 0.1
QUEUE_TIMEOUT_S = 60.0
FAILOVER_TIMEOUT_S = 60.0
CARRYING = frozenset({"read", "watch"})
"""Tasks without which no stream goes on or ends."""


class QueueClient:
    """`start()`, then `submit` any number of requests, then `close()`."""

    def __init__(
        self,
        redis_url: str,
        api_id: str,
        *,
        secret: str,
        failover_timeout_s: float = FAILOVER_TIMEOUT_S,
        keeps_tier: bool = False,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """secret: of `Codec`. failover_timeout_s: how long a request whose engine died waits for
        another one. keeps_tier: nobody reads along, so that it yields then as it did before.
        """
        self.api_id = api_id
        self._codec = Codec(secret)
        self._clock = clock
        self._redis = open_async_redis(redis_url, max_connections=MAX_CONNECTIONS)
        self._scripts = {
            name: cast(
                "Callable[..., Awaitable[Any]]", self._redis.register_script(read_script(name))
            )
            for name in ("enqueue", "requeue", "abort", "inspect", "load", "demand", "reap")
        }
        self._streams: dict[str, OutputStream] = {}
        self._aborts: dict[str, tuple[str, int]] = {}  # request -> its engine, if known, and epoch
        self._has_aborts = asyncio.Event()
        self._num_submitted = self._num_submitted_at_look = 0
        self._read_ids: list[bytes] = []
        self._enqueues: set[asyncio.Task[Any]] = set()
        self._tasks: list[asyncio.Task[None]] = []
        self._is_closing = False
        self._heartbeat = ApiHeartbeat(redis_url, api_id)
        self._reports = UsageReporter(
            self._redis, self._codec, clock, num_waiting=lambda: self.usage_backlog
        )
        self._has_adrift = asyncio.Event()
        failover = Failover(
            self._run,
            self._codec,
            self._abort_later,
            timeout_s=failover_timeout_s,
            keeps_tier=keeps_tier,
            clock=clock,
        )
        self._watch = Watch(
            self._run, self._streams, failover, on_data_lost=self._reports.repeat, clock=clock
        )

    async def start(self) -> None:
        """Begin to read. Does not fail where Redis is down: see `is_connected`."""
        steps = {
            "read": self._read,
            "watch": self._look,
            "abort": self._send_aborts,
            "report": self._reports.send,
        }
        self._heartbeat.start()
        try:
            await self._watch.look()
        except QueueUnavailableError as error:
            log.warning("queue_unavailable", task="start", error=str(error))
        self._tasks = [
            asyncio.create_task(self._repeat(name, step), name=f"queue-{name}")
            for name, step in steps.items()
        ]

    async def close(self) -> None:
        """Abort what is in flight and let go of Redis."""
        for stream in list(self._streams.values()):
            stream.fail("server_shutting_down", "The server is shutting down.", must_abort=True)
        await asyncio.gather(*self._enqueues, return_exceptions=True)
        self._is_closing = True  # a cancellation can be swallowed inside redis-py
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        try:
            while self._aborts:
                await self._send_aborts()
            while self._reports.num_unsent:
                await self._reports.send()
            with translated_errors():
                await self._redis.delete(keys.out(self.api_id))
        except QueueUnavailableError as error:
            log.warning("queue_unavailable", task="close", error=str(error))
        # Last: what this process could not end is ended by others once it is silent.
        await asyncio.to_thread(self._heartbeat.stop)
        await self._redis.aclose()

    @property
    def is_connected(self) -> bool:
        """Whether Redis answered at the last look (every 0.25 s)."""
        return self._watch.is_connected

    @property
    def usage_backlog(self) -> int:
        """How many records waited for a worker, a moment ago. No request ends without one."""
        return self._heartbeat.usage_backlog

    @property
    def num_in_flight(self) -> int:
        return len(self._streams)

    @property
    def num_queued(self) -> int:
        """How many requests waited at the last look, and how many were submitted here since."""
        return self._watch.num_queued + self._num_submitted - self._num_submitted_at_look

    async def load(self, tenant_id: str) -> QueueLoad:
        """What a new request of this tenant would find there. Raises QueueUnavailableError."""
        num_queued, num_tenants, num_own, rate = await self._run("load", tenant_id)
        return QueueLoad(num_queued, num_tenants, num_own, float(rate) if rate else None)

    async def demand(self) -> Demand:
        """What waits and what runs, everywhere. Raises QueueUnavailableError."""
        return demand_of(await self._run("demand", SAMPLE_SIZE))

    async def live_engines(self) -> frozenset[str]:
        """Ids of the engines with a fresh heartbeat. Raises QueueUnavailableError."""
        await self._watch.look_at_engines()
        return self._watch.live_engines

    async def num_engines(self) -> int:
        """How many engines are alive. Raises QueueUnavailableError."""
        return len(await self.live_engines())

    async def submit(
        self, request: EngineRequest, *, queue_timeout_s: float | None = QUEUE_TIMEOUT_S
    ) -> OutputStream:
        """Put a request into its tenant's queue. Raises QueueUnavailableError.

        If no engine takes it within `queue_timeout_s`, its stream ends with `queue_timeout`. A
        cancelled or failed `submit` leaves nothing behind.
        """
        assert request.api_id == self.api_id, "a stream comes back to the process that submits"
        assert request.request_id not in self._streams, "request ids are unique"
        now = self._clock()
        stream = OutputStream(
            request,
            on_end=self._forget,
            now=now,
            queue_timeout_s=queue_timeout_s,
        )
        self._num_submitted += 1
        self._streams[request.request_id] = stream
        enqueue = asyncio.create_task(self._enqueue(stream))
        self._enqueues.add(enqueue)
        enqueue.add_done_callback(self._enqueues.discard)
        try:
            # Shielded: half a command cannot be taken back, a whole one can be aborted.
            await asyncio.shield(enqueue)
        except QueueUnavailableError:
            stream.close("queue_unavailable")
            raise
        except asyncio.CancelledError:
            stream.close()
            raise
        return stream

    def disown(self, request: EngineRequest, reason: str) -> None:
        """An accepted request is not going to be submitted: report that it has ended."""
        self._reports.add(record_of_unsubmitted(request, reason))

    def abort(self, request_id: str) -> None:
        """Take a request back, whoever waits for it; its stream ends at once, without output."""
        stream = self._streams.get(request_id)
        if stream is not None:
            stream.close()

    async def _enqueue(self, stream: OutputStream) -> None:
        try:
            timeout_s = stream.queue_timeout_s
            args = enqueue_args(stream.request, self._codec, timeout_s=timeout_s)
            await self._run("enqueue", *args)
        finally:
            stream.is_enqueued = True
            if stream.is_finished:  # while this was on its way: the abort may have overtaken it
                self._abort_later(stream)

    def _forget(self, stream: OutputStream, must_abort: bool) -> None:
        self._streams.pop(stream.request_id, None)
        if stream.ending is not None:
            self._reports.add(record_of_stream(stream, stream.ending))
        if must_abort:
            self._abort_later(stream)

    def _abort_later(self, stream: OutputStream) -> None:
        # NOTE: each time in the queue is leased at most once, under the next epoch.
        epoch = max(stream.epoch, stream.request.epoch + 1)
        self._aborts[stream.request_id] = (stream.engine_id or "", epoch)
        self._has_aborts.set()

    async def _read(self) -> None:
        """Take what engines said, and delete it: the stream is read from its start each time.

        So neither a clock that steps back nor a server that lost its data can hide an entry.
        """
        name = keys.out(self.api_id)
        started_at = self._clock()
        with translated_errors():
            async with self._redis.pipeline(transaction=False) as pipe:
                if self._read_ids:
                    pipe.xdel(name, *self._read_ids)
                pipe.xread({name: "0"}, count=READ_COUNT, block=READ_BLOCK_MS)
                replies = await pipe.execute()
        self._read_ids = []
        for _, entries in replies[-1] or []:
            for entry_id, fields in entries:
                self._read_ids.append(entry_id)
                self._dispatch(fields[b"batch"])
        if len(self._read_ids) < READ_COUNT:
            self._watch.caught_up_at = started_at

    def _dispatch(self, data: bytes) -> None:
        try:
            batch, errors = self._codec.decode_batch(data)
        except MessageDecodeError as error:
            log.error("output_batch_dropped", api_id=self.api_id, error=str(error))
            return
        for damage in errors:  # the hole that it leaves moves its stream
            log.error("output_dropped", engine_id=batch.engine_id, error=str(damage))
        now = self._clock()
        for output in batch.outputs:
            self._push(output, batch.engine_id, now)

    def _push(self, output: TokenOutput, engine_id: str, now: float) -> None:
        stream = self._streams.get(output.request_id)
        if stream is None:
            return
        stream.push(output, engine_id, now)
        if stream.adrift is not None:
            self._has_adrift.set()
        if stream.is_finished and stream.ending is None and output.finish_reason is not None:
            reason = output.finish_reason.value if output.error is None else output.error.code
            self._reports.remember(record_of_stream(stream, reason))

    async def _look(self) -> None:
        num_submitted = self._num_submitted
        await self._watch.look()
        self._num_submitted_at_look = num_submitted
        try:
            async with asyncio.timeout(WATCH_INTERVAL_S):
                await self._has_adrift.wait()
        except TimeoutError:
            return
        self._has_adrift.clear()

    async def _send_aborts(self) -> None:
        if not self._aborts:
            self._has_aborts.clear()
            await self._has_aborts.wait()
        aborts = dict(islice(self._aborts.items(), MAX_ABORTS_AT_ONCE))
        for request_id in aborts:
            del self._aborts[request_id]
        try:
            states = await self._abort(aborts)
        except (QueueUnavailableError, asyncio.CancelledError):
            self._aborts = aborts | self._aborts  # in their order, bar what has been said anew
            raise
        for request_id, state in zip(aborts, states, strict=True):
            log.info("request_aborted", request_id=request_id, was=state.decode())

    async def _abort(self, aborts: Mapping[str, tuple[str, int]]) -> list[bytes]:
        """Where each was, by `abort.lua`. Several cost no more than one."""
        with translated_errors():
            async with self._redis.pipeline(transaction=False) as pipe:
                for request_id, (engine_id, epoch) in aborts.items():
                    args = abort_args(request_id, self._codec, epoch=epoch, engine_id=engine_id)
                    await self._scripts["abort"](args=args, client=pipe)
                return await pipe.execute()

    async def _repeat(self, name: str, step: Callable[[], Awaitable[None]]) -> None:
        while not self._is_closing:
            try:
                await step()
            except QueueUnavailableError as error:
                log.warning("queue_unavailable", task=name, error=str(error))
                await asyncio.sleep(RETRY_S)
            except Exception:  # who waits is told of our mistake, and who comes finds it whole
                log.exception("queue_task_failed", task=name)
                if name in CARRYING:
                    self._fail_all()
                await asyncio.sleep(RETRY_S)

    def _fail_all(self) -> None:
        self._watch.is_connected = False
        for stream in list(self._streams.values()):
            stream.fail("internal_error", "The server failed.", must_abort=True)

    async def _run(self, script: str, *args: Any) -> Any:
        with translated_errors():
            return await self._scripts[script](args=args)
