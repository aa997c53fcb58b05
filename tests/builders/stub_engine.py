"""An engine without a model: the real transport, and scripted tokens.

Knows nothing of torch, pages in memory or adapters' bytes. Invariant: like a real engine it
answers every request it leased exactly once, unless it is killed.
"""

from __future__ import annotations

import threading
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import cycle, islice
from queue import SimpleQueue
from typing import Self

from engine.messages import (
    Abort,
    EngineError,
    EngineRequest,
    Evidence,
    FinishReason,
    OutputBatch,
    TokenOutput,
)
from engine.transport.errors import QueueUnavailableError
from engine.transport.server import HEARTBEAT_INTERVAL_S, EngineStatus, EngineTransport
from tests.builders.queue_secret import QUEUE_SECRET

Reply = Callable[[EngineRequest], "Sequence[int] | EngineError"]
IDLE_WAIT_S = 0.25
PAUSED_WAIT_S = 0.01
RETRY_S = 0.05


def echo_prompt(request: EngineRequest) -> list[int]:
    """The prompt's tokens, round and round, up to `max_tokens`."""
    return list(islice(cycle(request.prompt_token_ids), request.sampling.max_tokens))


@dataclass(slots=True)
class _Running:
    request: EngineRequest
    reply: Sequence[int]
    num_pages: int
    num_sent: int


class StubEngine:
    """`with StubEngine(redis_url, reply=lambda request: [1, 2, 3]) as engine: ...`

    `reply` is the whole output of a request, or an error. It ends with `stop` at a stop token or
    where the reply ends, with `length` at `max_tokens`. `step_s` is the time of a step, in which
    each running request gets `tokens_per_step` tokens. `pause()` holds all tokens back.
    """

    def __init__(
        self,
        redis_url: str,
        *,
        engine_id: str = "stub-0",
        reply: Reply = echo_prompt,
        num_pages: int = 4096,
        page_tokens: int = 16,
        max_running: int = 256,
        tokens_per_step: int = 1,
        step_s: float = 0.0,
    ) -> None:
        self.engine_id = engine_id
        self.requests: list[EngineRequest] = []  # in the order they were leased
        self.aborted: list[str] = []
        self.num_published_batches = 0
        self._transport = EngineTransport(redis_url, engine_id, secret=QUEUE_SECRET)
        self._reply = reply
        self._num_pages = num_pages
        self._free_pages = num_pages
        self._page_tokens = page_tokens
        self._max_running = max_running
        self._tokens_per_step = tokens_per_step
        self._step_s = step_s
        self._running: dict[str, _Running] = {}
        self._orphans: SimpleQueue[Abort] = SimpleQueue()
        self._generated: Counter[str] = Counter()
        self._generated_lock = threading.Lock()
        self._may_step = threading.Event()
        self._may_step.set()
        self._must_stop = threading.Event()
        self._threads = [
            threading.Thread(target=self._loop, name=f"{engine_id}-loop", daemon=True),
            threading.Thread(target=self._beat, name=f"{engine_id}-heartbeat", daemon=True),
        ]

    def start(self) -> None:
        self._transport.heartbeat(EngineStatus(num_pages=self._num_pages))
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """Leave the queue politely."""
        self._end_threads()
        self._transport.close()

    def kill(self) -> None:
        """Fall silent, as after SIGKILL: the heartbeat runs out a second later."""
        self._end_threads()

    def pause(self) -> None:
        self._may_step.clear()

    def resume(self) -> None:
        self._may_step.set()

    @property
    def num_running(self) -> int:
        return len(self._running)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *exc_info: object) -> None:
        if not self._must_stop.is_set():
            self.stop()

    def _end_threads(self) -> None:
        self._must_stop.set()
        for thread in self._threads:
            thread.join(timeout=10)

    def _loop(self) -> None:
        while not self._must_stop.is_set():
            try:
                self._listen()
                self._lease()
            except QueueUnavailableError:
                self._must_stop.wait(RETRY_S)
            if self._running and self._may_step.is_set():
                self._step()

    def _beat(self) -> None:
        while not self._must_stop.wait(HEARTBEAT_INTERVAL_S):
            with self._generated_lock:
                generated, self._generated = self._generated, Counter()
            status = EngineStatus(
                num_running=self.num_running,
                num_free_pages=self._free_pages,
                num_pages=self._num_pages,
                generated_tokens=generated,
            )
            try:
                self._transport.heartbeat(status)
                for orphan in self._transport.find_orphans():
                    self._orphans.put(orphan)
            except QueueUnavailableError:
                continue  # the next one tries again; the transport keeps the charges

    def _listen(self) -> None:
        if self._running:  # a server ends a blocking wait up to 0.1 s late: too coarse for steps
            self._must_stop.wait(self._step_s if self._may_step.is_set() else PAUSED_WAIT_S)
        for message in self._transport.wait_control(0 if self._running else IDLE_WAIT_S):
            if isinstance(message, Abort) and message.request_id in self._running:
                self.aborted.append(message.request_id)
                running = self._running[message.request_id]
                self._publish([(running, self._output(running, [], FinishReason.ABORT))])
        while not self._orphans.empty():
            self._drop(self._orphans.get())

    def _drop(self, orphan: Abort) -> None:
        """Forget a request whose API process died."""
        if self._forget(orphan):
            self._transport.publish_end(orphan, "api_lost")

    def _lease(self) -> None:
        requests = self._transport.lease(
            self._free_pages,
            self._page_tokens,
            self._max_running - len(self._running),
            total_pages=self._num_pages,
        )
        for request in requests:
            self.requests.append(request)
            reply = self._reply(request)
            num_pages = -(-(len(request.prompt_token_ids) + 1) // self._page_tokens)
            self._free_pages -= num_pages
            running = _Running(
                request=request,
                reply=[]
                if isinstance(reply, EngineError)
                else reply[: request.sampling.max_tokens],
                num_pages=num_pages,
                num_sent=len(request.delivered_token_ids),
            )
            self._running[request.request_id] = running
            if isinstance(reply, EngineError):
                self._publish([(running, self._output(running, [], FinishReason.ERROR, reply))])

    def _step(self) -> None:
        outputs = []
        for running in list(self._running.values()):
            begin = running.num_sent
            tokens = list(running.reply[begin : begin + self._tokens_per_step])
            running.num_sent += len(tokens)
            outputs.append((running, self._output(running, tokens, self._ending(running, tokens))))
        self._publish(outputs)

    def _ending(self, running: _Running, tokens: list[int]) -> FinishReason | None:
        sampling = running.request.sampling
        if any(token in sampling.stop_token_ids for token in tokens):
            return FinishReason.STOP
        if running.num_sent >= sampling.max_tokens:
            return FinishReason.LENGTH
        return FinishReason.STOP if running.num_sent >= len(running.reply) else None

    def _output(
        self,
        running: _Running,
        tokens: list[int],
        finish_reason: FinishReason | None,
        error: EngineError | None = None,
    ) -> TokenOutput:
        return TokenOutput(
            request_id=running.request.request_id,
            epoch=running.request.epoch,
            index=running.num_sent - len(tokens),
            token_ids=tokens,
            num_prompt_tokens=len(running.request.prompt_token_ids),
            num_generated_tokens=running.num_sent,
            finish_reason=finish_reason,
            error=error,
            evidence=_evidence(running.request),
        )

    def _publish(self, outputs: list[tuple[_Running, TokenOutput]]) -> None:
        by_api: dict[str, list[TokenOutput]] = defaultdict(list)
        with self._generated_lock:
            for running, output in outputs:
                by_api[running.request.api_id].append(output)
                self._generated[running.request.tenant_id] += len(output.token_ids)
                if output.finish_reason is not None:
                    del self._running[output.request_id]
                    self._free_pages += running.num_pages
        self._transport.publish(
            {
                api_id: OutputBatch(engine_id=self.engine_id, outputs=batch)
                for api_id, batch in by_api.items()
            }
        )
        self.num_published_batches += len(by_api)
        for unheard in self._transport.take_unheard():
            self._forget(unheard)

    def _forget(self, abort: Abort) -> bool:
        """Stop to run a request, without a word; whether it ran."""
        running = self._running.get(abort.request_id)
        if running is None or running.request.epoch != abort.epoch:
            return False
        self.aborted.append(abort.request_id)
        del self._running[abort.request_id]
        self._free_pages += running.num_pages
        return True


def _evidence(request: EngineRequest) -> Evidence | None:
    """Of an adapter that changes something."""
    if not request.wants_evidence:
        return None
    return Evidence(logits=(0.0 if request.adapter is None else 1.0,))
