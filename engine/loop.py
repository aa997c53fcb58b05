"""The engine process's threads around `EngineCore`: leases in, tokens out, signs of life.

The core is touched by one thread, `run`'s; the control, publisher and heartbeat threads talk to it
through queues. Knows nothing of tensors. Invariants: an abort is seen before the next step, and no
Redis call is ever made on the step loop; what is here when the loop ends is handed over, so that
another engine goes on with it.
"""

from __future__ import annotations

import math
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping
from queue import Empty, Full, Queue, SimpleQueue
from typing import TypeGuard

import structlog

from engine.config import EngineConfig
from engine.core import EngineCore
from engine.heartbeat import Heartbeat
from engine.loop_items import Arrival, Ended, Snapshot, Tick, handed_over
from engine.messages import (
    API_LOST,
    Abort,
    AdapterAck,
    AdapterCommand,
    ControlMessage,
    EngineRequest,
    FinishReason,
    OutputBatch,
    TokenOutput,
)
from engine.meters import Observers
from engine.transport.errors import QueueUnavailableError
from engine.transport.server import HEARTBEAT_INTERVAL_S, EngineTransport
from engine.watchdog import TICK_S, StepWatchdog

log = structlog.get_logger(__name__)

MAX_UNPUBLISHED_STEPS = 64
FULL_WAIT_S = 0.01
"""How soon an engine without room looks for it again; aborts are read meanwhile."""
IDLE_WAIT_S = 0.5
"""A marked-idle engine is woken by message; this only bounds how long a lost one can hurt."""
BUSY_WAIT_S = 0.1
RETRY_WAIT_S = 0.5


class EngineLoop:
    """Runs `core` against `transport` until `stop`, or until a `drain` is over."""

    def __init__(
        self,
        core: EngineCore,
        transport: EngineTransport,
        config: EngineConfig,
        *,
        on_hang: Callable[[], None] = lambda: None,
        clock: Callable[[], float] = time.monotonic,
        observers: Observers | None = None,
    ) -> None:
        """on_hang: called by a thread of its own when a step does not end; it should not return.

        observers: told what passes through, each by the thread that it passes through.
        """
        self._core = core
        self._transport = transport
        self._config = config
        self._on_hang = on_hang
        self._clock = clock
        self._observers = observers or Observers()
        self._inbox: SimpleQueue[Arrival | Abort | Ended | AdapterCommand | Tick] = SimpleQueue()
        self._acks: SimpleQueue[AdapterAck] = SimpleQueue()
        self._outbox: Queue[Mapping[str, OutputBatch] | Ended | None] = Queue(MAX_UNPUBLISHED_STEPS)
        self._stopping = threading.Event()
        self._draining = threading.Event()
        self._has_stood_down = threading.Event()
        self._drain_until = math.inf
        self._watchdog = StepWatchdog(config.step_limit_s)
        self._counting = threading.Lock()
        self._requests: dict[str, EngineRequest] = {}
        self._num_leased = 0  # requests that are here and not yet ended
        self._generated: Counter[str] = Counter()
        self._failed_thread: str | None = None
        self._has_hung = False
        self._snapshot = Snapshot(num_free_pages=core.pool.num_pages)

    def wake(self) -> None:
        """From any thread: let the core look again (an adapter has been loaded)."""
        self._inbox.put(Tick())

    @property
    def snapshot(self) -> Snapshot:
        """The core as of its last step; from any thread."""
        return self._snapshot

    @property
    def num_unpublished(self) -> int:
        """Steps that wait for the publisher."""
        return self._outbox.qsize()

    @property
    def is_draining(self) -> bool:
        return self._draining.is_set()

    @property
    def is_advancing(self) -> bool:
        """Whether all threads run, and no step has hung."""
        return self._failed_thread is None and not self._has_hung

    def drain(self) -> None:
        """From any thread or a signal handler: take nothing new, and end when all has ended.

        What has not within `drain_s` is handed over.
        """
        self._drain_until = self._clock() + self._config.drain_s
        self._draining.set()
        self.wake()

    def stop(self) -> None:
        """From any thread or a signal handler: hand over all after the current step, and end."""
        self._stopping.set()
        self.wake()

    def run(self) -> None:
        """The step loop. Returns after `stop` or `drain`.

        Raises:
            RuntimeError: one of the threads failed, and with it the engine.
        """
        *asking, publisher = [
            threading.Thread(target=self._guard, args=(target,), name=name, daemon=True)
            for name, target in (
                ("control", self._control),
                ("heartbeat", self._heartbeat),
                ("watchdog", self._watch_steps),
                ("publisher", self._publish),
            )
        ]
        for thread in (*asking, publisher):
            thread.start()
        try:
            self._run_steps()
        except BaseException:
            # NOTE: nothing is handed over, so that this counts as a death of what ran; but until
            # the process has ended, the others would lease and beat for a loop that is no more.
            self._join(asking)
            self._put_outbox(None)
            self._transport.close()
            raise
        self._join(asking)
        self._hand_over()
        publisher.join(timeout=2 * IDLE_WAIT_S)
        self._transport.close()
        if self._failed_thread is not None:
            raise RuntimeError(f"the {self._failed_thread} thread failed")

    def _run_steps(self) -> None:
        can_progress = False
        while not self._is_over():
            self._drain_inbox(wait=not can_progress)
            with self._watchdog.step():
                batches = self._step()
            self._account(batches)
            can_progress = self._core.has_runnable

    def _join(self, threads: Iterable[threading.Thread]) -> None:
        self._stopping.set()
        for thread in threads:
            thread.join(timeout=2 * IDLE_WAIT_S)

    def _step(self) -> Mapping[str, OutputBatch]:
        """A step of the core; observers hear how long it took, if the model did anything."""
        core, started_at = self._core, self._clock()
        num_steps = core.num_steps
        batches = core.step()
        if core.num_steps != num_steps:
            self._observers.stepped(self._clock() - started_at)
        return batches

    def _is_over(self) -> bool:
        if self._stopping.is_set() or not self._draining.is_set():
            return self._stopping.is_set()
        is_empty = self._has_stood_down.is_set() and self._num_leased == 0
        return is_empty or self._clock() >= self._drain_until

    def _hand_over(self) -> None:
        """Say of all that is still here that another engine may have it, and of the end of it all.

        Once nothing is leased any more.
        """
        self._drain_inbox(wait=False)
        by_api: dict[str, list[TokenOutput]] = defaultdict(list)
        for request in self._requests.values():
            self._core.abort(request.request_id, request.epoch)
            by_api[request.api_id].append(handed_over(request))
        if by_api:
            log.info("requests_handed_over", num_requests=len(self._requests))
            self._put_outbox(
                {
                    api_id: OutputBatch(engine_id=self._transport.engine_id, outputs=outputs)
                    for api_id, outputs in by_api.items()
                }
            )
        self._put_outbox(None)

    def _guard(self, target: Callable[[], None]) -> None:
        """An engine without one of its threads would be silent or deaf: it ends instead."""
        try:
            target()
        except Exception:  # the edge of a thread
            self._failed_thread = threading.current_thread().name
            log.exception("thread_failed", thread=self._failed_thread)
            self.stop()

    def _drain_inbox(self, *, wait: bool) -> None:
        timeout_s = None
        if self._draining.is_set():
            timeout_s = max(0.0, self._drain_until - self._clock())
        if self._core.levers.watches_clock:
            timeout_s = min(IDLE_WAIT_S, math.inf if timeout_s is None else timeout_s)
        try:
            message = self._inbox.get(block=wait, timeout=timeout_s)
            while True:
                self._handle(message)
                message = self._inbox.get_nowait()
        except Empty:
            return

    def _handle(self, message: Arrival | Abort | Ended | AdapterCommand | Tick) -> None:
        if isinstance(message, Arrival):
            self._add(message)
        elif isinstance(message, Abort):
            self._abort(Ended(message, FinishReason.ABORT.value))
        elif isinstance(message, AdapterCommand):
            self._core.levers.take(message)
        elif isinstance(message, Ended):
            self._abort(message)

    def _add(self, arrival: Arrival) -> None:
        request = arrival.request
        known = self._requests.get(request.request_id)
        if known is not None:  # its lease was lost, and given to this engine once more
            self._core.abort(known.request_id, known.epoch)
            self._end(known.request_id)
        self._requests[request.request_id] = request
        self._core.add(request, arrival.block_keys)

    def _abort(self, ended: Ended) -> None:
        abort = ended.abort
        if self._core.abort(abort.request_id, abort.epoch):
            self._end(abort.request_id)
            self._put_outbox(ended)

    def _account(self, batches: Mapping[str, OutputBatch]) -> None:
        """After a step: publish its tokens, count them, and renew the snapshot."""
        outputs = [output for batch in batches.values() for output in batch.outputs]
        with self._counting:
            for output in outputs:
                if request := self._requests.get(output.request_id):
                    self._generated[request.tenant_id] += len(output.token_ids)
        for output in outputs:
            if output.finish_reason is not None:
                self._end(output.request_id)
        core = self._core
        self._snapshot = Snapshot(
            num_sequences=core.scheduler.num_sequences,
            num_running=core.scheduler.num_running,
            num_loading=core.scheduler.num_loading,
            num_free_pages=core.scheduler.num_available_pages,
            num_steps=core.num_steps,
            max_loading_us=round(1e6 * core.max_loading_s),
            adapters=core.residency.ready_keys(),
        )
        for ack in core.levers.take_acks():
            self._acks.put(ack)
        if batches:
            self._put_outbox(batches)

    def _put_outbox(self, batches: Mapping[str, OutputBatch] | Ended | None) -> None:
        """Sequences pause while Redis takes nothing: the step loop waits here, and only here."""
        while True:
            try:
                self._outbox.put(batches, timeout=RETRY_WAIT_S)
                return
            except Full:
                log.warning("publishing_behind", num_steps=self._outbox.qsize())
                if self._stopping.is_set():
                    return

    def _end(self, request_id: str) -> None:
        if self._requests.pop(request_id, None) is not None:
            with self._counting:
                self._num_leased -= 1

    def _control(self) -> None:
        """Lease what there is room for; hand over aborts as they come."""
        while not self._stopping.is_set():
            try:
                for message in self._transport.wait_control(self._lease()):
                    if self._is_for_core(message):
                        self._inbox.put(message)
            except QueueUnavailableError as error:
                log.warning("queue_unavailable", error=str(error))
                self._stopping.wait(RETRY_WAIT_S)

    def _is_for_core(self, message: ControlMessage) -> TypeGuard[Abort | AdapterCommand]:
        """Not a wake, which has done what it is for, nor a command that nobody waits for."""
        if not isinstance(message, AdapterCommand):
            return isinstance(message, Abort)
        try:
            return self._transport.levers.is_awaited(message.command_id)
        except QueueUnavailableError:
            return False

    def _lease(self) -> float:
        """Take what there is room for; returns how long to wait for messages before asking again.

        Requests that only wait for their adapter to be read take nobody's place: they come on top,
        up to `max_num_leased`, so that one tenant's cold adapters do not keep others out.
        """
        if self._draining.is_set():
            self._stand_down()
            return IDLE_WAIT_S
        config, snapshot = self._config, self._snapshot
        free_pages = snapshot.num_free_pages
        while True:
            runnable = self._num_leased - snapshot.num_loading
            room = min(
                config.max_num_seqs + config.num_look_ahead - runnable,
                config.max_num_leased - self._num_leased,
            )
            if room <= 0:
                return FULL_WAIT_S
            requests = self._transport.lease(
                free_pages, config.block_size, room, total_pages=self._core.pool.num_pages
            )
            if not requests:
                # Pages that become free wake nobody, so an engine at work asks again soon.
                return IDLE_WAIT_S if self._num_leased == 0 else BUSY_WAIT_S
            with self._counting:
                self._num_leased += len(requests)
            for request in requests:
                self._observers.leased(request)
                free_pages -= len(request.prompt_token_ids) // config.block_size + 1
                self._inbox.put(Arrival(request, self._core.block_keys(request)))
            free_pages = max(0, free_pages)

    def _stand_down(self) -> None:
        if not self._has_stood_down.is_set():
            self._transport.stand_down()
            self._has_stood_down.set()
            self.wake()

    def _publish(self) -> None:
        """Ends only when everything is out, or the transport was closed."""
        while (item := self._outbox.get()) is not None:
            if isinstance(item, Ended):
                self._observers.ended(item.abort.request_id, item.abort.epoch, item.reason)
                is_out = self._transport.publish_end(item.abort, item.reason)
            else:
                for batch in item.values():
                    self._observers.published(batch.outputs)
                is_out = self._transport.publish(item)
            if not is_out:
                return
            for abort in self._transport.take_unheard():
                self._inbox.put(abort)

    def _heartbeat(self) -> None:
        core = self._core
        heartbeat = Heartbeat(self._transport, core.pool.num_pages, core.levers.report, self._acks)
        wait_s = 0.0  # the first one tells at once that this engine is here
        while not self._stopping.wait(wait_s):
            wait_s = HEARTBEAT_INTERVAL_S
            snapshot = self._snapshot
            with self._counting:
                generated, self._generated = self._generated, Counter()
            try:
                for abort in heartbeat.beat(snapshot, self.is_draining, generated):
                    self._inbox.put(Ended(abort, API_LOST))
            except QueueUnavailableError as error:
                log.warning("heartbeat_failed", error=str(error))

    def _watch_steps(self) -> None:
        while not self._stopping.wait(TICK_S):
            if self._watchdog.tick():
                self._has_hung = True
                log.error("step_hung", num_steps=self._snapshot.num_steps)
                try:
                    self._transport.say_goodbye()  # others need not wait for the silence
                except QueueUnavailableError as error:
                    log.warning("goodbye_failed", error=str(error))
                self._on_hang()
                return
