"""An engine's end of the queue: lease requests, hear of aborts, publish tokens, be alive.

Blocking, for an engine's own threads (control, publisher, heartbeat), which may share one object.
Knows nothing of schedulers or tensors. Invariants: a request that was leased is either returned to
the caller or answered here with an error, also where a reply was lost on the way; output is heard
only while the request is leased to this life of this engine, and whoever is not heard learns it.
"""

from __future__ import annotations

import secrets
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from queue import SimpleQueue
from typing import Any, cast

import msgspec
import structlog

from engine.messages import (
    TRIAL_TENANT,
    Abort,
    AdapterRef,
    ControlMessage,
    EngineError,
    EngineRequest,
    FinishReason,
    OutputBatch,
    TokenOutput,
    UsageRecord,
)
from engine.transport import keys
from engine.transport.codec import Codec
from engine.transport.connection import SOCKET_TIMEOUT_S, open_redis, translated_errors
from engine.transport.errors import MessageDecodeError, QueueUnavailableError
from engine.transport.lease_rules import LeaseRules
from engine.transport.lever_reports import LeverReports
from engine.transport.orphans import Orphans
from engine.transport.scripts import read_script
from engine.transport.usage import UsageMeter

log = structlog.get_logger(__name__)

HEARTBEAT_INTERVAL_S = 0.25
HEARTBEAT_TTL_S = 1.0
PLACE_TTL_S = 10.0  # of a request in flight; the API's admission goes by it as well
PLACE_INTERVAL_S = 2.0
RESIDENT_TTL_S = 60.0
OUT_STREAM_TTL_S = 60.0
MAX_OUT_ENTRIES = 65_536  # per API process: minutes of steps that nobody reads
MAX_CONTROL_MESSAGES = 256
MAX_CONTROL_WAIT_S = SOCKET_TIMEOUT_S / 2
SERVER_TICK_S = 0.1  # Redis and Valkey, at their default hz of 10
GENERATED_TOKEN_COST = 2  # of a prompt token, as in VTC (Sheng et al., 2024)
PUBLISH_RETRY_S = (0.01, 0.05, 0.25, 1.0)
UNKNOWN_CAPACITY = 1 << 40


class EngineStatus(msgspec.Struct, frozen=True, kw_only=True):
    """What a heartbeat tells. `generated_tokens` counts, by tenant, since the last heartbeat."""

    num_running: int = 0
    num_waiting: int = 0
    num_free_pages: int = 0
    num_pages: int = 0
    num_steps: int = 0
    max_loading_us: int = 0
    """The most that a step has spent on adapters' loading."""
    is_draining: int = 0
    generated_tokens: Mapping[str, int] = {}


class EngineTransport:
    """One per engine process. `lease` and `heartbeat` belong to one thread each.

    All methods but `publish` raise QueueUnavailableError where Redis does not answer; each may
    simply be called again.
    """

    def __init__(
        self, redis_url: str, engine_id: str, *, secret: str, rules: LeaseRules | None = None
    ) -> None:
        """secret: of `Codec`."""
        self._rules = rules or LeaseRules()
        self.engine_id = engine_id
        self._codec = Codec(secret)
        self._boot_id = secrets.token_hex(8)  # a restarted engine does not own its old leases
        self._redis = open_redis(redis_url, max_connections=8)
        self._scripts = {
            name: cast("Callable[..., Any]", self._redis.register_script(read_script(name)))
            for name in ("lease", "publish", "heartbeat", "hold", "reap")
        }
        self._ask = 0
        self._uncharged: Counter[str] = Counter()
        self._held_at = -PLACE_INTERVAL_S
        self._meter = UsageMeter(engine_id)
        self.levers = LeverReports(self._redis, self._codec, engine_id)
        """For the heartbeat's thread, but for `is_awaited`."""
        self._orphans = Orphans(self._redis, self._meter)
        self._unheard: SimpleQueue[Abort] = SimpleQueue()
        self._is_closed = threading.Event()

    def lease(
        self, free_pages: int, page_tokens: int, n: int, *, total_pages: int | None = None
    ) -> list[EngineRequest]:
        """Up to `n` requests whose prompts fit in `free_pages` pages of `page_tokens` tokens.

        An empty list marks this engine idle: the next request sends it a `Wake`. Ask again when
        pages become free, on a `Wake`, and when `wait_control` timed out. A request that would
        not fit in `total_pages` either is returned for the caller to answer with an error.
        """
        if n <= 0:
            return []
        rows = self._run(
            "lease",
            self.engine_id,
            self._boot_id,
            f"{self._boot_id}:{self._ask}",
            free_pages,
            page_tokens,
            n,
            UNKNOWN_CAPACITY if total_pages is None else total_pages,
            int(self._rules.max_age_s * 1000),
            int(HEARTBEAT_TTL_S * 1000),
            *self._rules.as_arguments(),
        )
        # NOTE: counted on only after the reply: the same ask after a lost one gets its leases.
        self._ask += 1
        requests = [self._decode_or_refuse(row) for row in rows]
        leased = [request for request in requests if request is not None]
        for request in leased:
            self._meter.open(request)
        return leased

    def wait_control(self, timeout_s: float) -> list[ControlMessage]:
        """Aborts and wakes, oldest first; waits up to `timeout_s` (at most 2.5 s) for one.

        Servers end blocking waits ten times a second. A time-out shorter than that is slept here,
        so that it can pace an engine's asking; a message may then come that much late.
        """
        with translated_errors():
            if timeout_s < SERVER_TICK_S:
                found = self._pop_control()
                if not found and timeout_s > 0:
                    self._is_closed.wait(timeout_s)
                    found = self._pop_control()
            else:
                found = self._block_control(timeout_s)
        messages: list[ControlMessage] = []
        for data in found:
            try:
                messages.append(self._codec.decode_control(data))
            except MessageDecodeError as error:
                log.error("control_message_dropped", engine_id=self.engine_id, error=str(error))
        return messages

    def publish(self, batches: Mapping[str, OutputBatch]) -> bool:
        """Send one step's outputs, by API process; ends the leases of what finished.

        Output is never dropped: this retries until Redis takes it (readers drop duplicates), and
        returns False only if `close` was called first. What the requests used goes with it. Of a
        request that is no longer leased to this engine nothing is sent: see `take_unheard`.
        """
        if not batches:
            return True
        outputs = [output for batch in batches.values() for output in batch.outputs]
        return self._publish(batches, self._meter.observe(outputs), [])

    def take_unheard(self) -> list[Abort]:
        """What would abort the requests that another engine, or nobody, has now; each call's news.

        From any thread, after `publish`.
        """
        found = []
        while not self._unheard.empty():
            found.append(self._unheard.get())
        return found

    def publish_end(self, abort: Abort, reason: str) -> bool:
        """Say what an aborted request used, and end its lease; nobody waits for its output."""
        record = self._meter.end(abort.request_id, abort.epoch, reason)
        if record is None:
            return True
        return self._publish({}, [record], [(abort.request_id, abort.epoch)])

    def find_orphans(self) -> list[Abort]:
        """What is in flight here for API processes that died: nobody wants it any more.

        Call it as often as `heartbeat`, from the same thread.
        """
        return self._orphans.find()

    def _publish(
        self,
        batches: Mapping[str, OutputBatch],
        records: list[UsageRecord],
        ended: list[tuple[str, int]],
    ) -> bool:
        records = [record for record in records if record.tenant_id != TRIAL_TENANT]
        args: list[Any] = [self.engine_id, self._boot_id]
        args += (MAX_OUT_ENTRIES, int(OUT_STREAM_TTL_S * 1000), len(batches))
        for api_id, batch in batches.items():
            args += (api_id, len(batch.outputs))
            for output in batch.outputs:
                args += (output.request_id, output.epoch, _effect(output))
                args.append(self._codec.encode_part(output))
        args.append(len(records))
        for record in records:
            args += (record.request_id, record.epoch, self._codec.encode(record))
        for request_id, epoch in ended:
            args += (request_id, epoch)
        attempt = 0
        while True:
            try:
                dropped = self._run("publish", *args)
                break
            except QueueUnavailableError as error:
                log.warning("publish_retried", engine_id=self.engine_id, error=str(error))
                if self._is_closed.wait(PUBLISH_RETRY_S[min(attempt, len(PUBLISH_RETRY_S) - 1)]):
                    return False
                attempt += 1
        for request_id, epoch in zip(dropped[::2], dropped[1::2], strict=True):
            self._unheard.put(Abort(request_id=request_id.decode(), epoch=int(epoch)))
        return True

    def heartbeat(self, status: EngineStatus) -> None:
        """Be alive for another second, and charge what was generated. Every 0.25 s, one thread.

        Every `PLACE_INTERVAL_S` it says which requests are held here, so that they stay counted as
        in flight while they run, whatever becomes of their API process.
        """
        self._uncharged.update(status.generated_tokens)
        fields = [
            (name, getattr(status, name))
            for name in status.__struct_fields__
            if name != "generated_tokens"
        ]
        args: list[Any] = [int(HEARTBEAT_TTL_S * 1000), int(RESIDENT_TTL_S * 1000), len(fields)]
        for name, value in fields:
            args += (name, value)
        for tenant_id, num_tokens in self._uncharged.items():
            args += (tenant_id, num_tokens * GENERATED_TOKEN_COST)
        self._run("heartbeat", self.engine_id, self._boot_id, *args)
        self._uncharged.clear()
        self._hold_places()

    def _hold_places(self) -> None:
        now = time.monotonic()
        if now - self._held_at < PLACE_INTERVAL_S:
            return
        held = self._meter.request_ids()
        if held:
            self._run("hold", int(PLACE_TTL_S * 1000), *held)
        self._held_at = now

    def update_resident(
        self, added: Iterable[AdapterRef], removed: Iterable[AdapterRef] = ()
    ) -> None:
        """Say by difference which adapters' pages this engine holds (for affinity)."""
        name = keys.resident(self.engine_id)
        added_members = [keys.adapter_member(adapter) for adapter in added]
        removed_members = [keys.adapter_member(adapter) for adapter in removed]
        with translated_errors(), self._redis.pipeline(transaction=True) as pipe:
            if added_members:
                pipe.sadd(name, *added_members)
                pipe.pexpire(name, int(RESIDENT_TTL_S * 1000))
            if removed_members:
                pipe.srem(name, *removed_members)
            pipe.execute()

    def stand_down(self) -> None:
        """This engine will not ask any more: let no new request count on it."""
        with translated_errors():
            self._redis.zrem(keys.IDLE, self.engine_id)

    def say_goodbye(self) -> None:
        """Be dead to everybody from now on, and not only when the heartbeat has run out."""
        self._run("reap", self.engine_id, self._boot_id)

    def close(self) -> None:
        """Leave the queue. What is still leased goes to another engine, as after a death."""
        self._is_closed.set()
        try:
            self.say_goodbye()
        except QueueUnavailableError as error:
            log.warning("goodbye_failed", engine_id=self.engine_id, error=str(error))
        self._redis.close()

    def _pop_control(self) -> list[bytes]:
        reply = self._redis.lmpop(
            1, keys.control(self.engine_id), direction="LEFT", count=MAX_CONTROL_MESSAGES
        )
        return cast("list[bytes]", reply[1] if reply else [])

    def _block_control(self, timeout_s: float) -> list[bytes]:
        reply = self._redis.blmpop(
            min(timeout_s, MAX_CONTROL_WAIT_S),
            1,
            keys.control(self.engine_id),
            direction="LEFT",
            count=MAX_CONTROL_MESSAGES,
        )
        return cast("list[bytes]", reply[1] if reply else [])

    def _run(self, script: str, *args: Any) -> Any:
        with translated_errors():
            return self._scripts[script](args=args)

    def _decode_or_refuse(self, row: list[Any]) -> EngineRequest | None:
        request_id, epoch = row[0].decode(), int(row[1])
        tenant_id, api_id = row[2].decode(), row[3].decode()
        num_prompt_tokens, queue_ms = int(row[4]), int(row[6])
        try:
            request = self._codec.decode_request(row[5])
            if (request.request_id, request.tenant_id, request.api_id) != (
                request_id,
                tenant_id,
                api_id,
            ):
                raise MessageDecodeError("it was put in the place of another request")
        except MessageDecodeError as error:
            log.error("request_refused", request_id=request_id, error=str(error))
            self._meter.open_unread(
                request_id,
                tenant_id=tenant_id,
                api_id=api_id,
                epoch=epoch,
                num_prompt_tokens=num_prompt_tokens,
                queue_ms=queue_ms,
            )
            refusal = TokenOutput(
                request_id=request_id,
                epoch=epoch,
                index=0,
                token_ids=[],
                num_prompt_tokens=num_prompt_tokens,
                num_generated_tokens=0,
                finish_reason=FinishReason.ERROR,
                error=EngineError(
                    code="message_invalid", message="The engine could not read the request."
                ),
            )
            self.publish({api_id: OutputBatch(engine_id=self.engine_id, outputs=[refusal])})
            return None
        return msgspec.structs.replace(request, epoch=epoch, queue_ms=queue_ms)


def _effect(output: TokenOutput) -> str:
    """On the lease, in the words of lua/publish.lua."""
    if output.finish_reason is FinishReason.HAND_OVER:
        return "hand_over"
    return "" if output.finish_reason is None else "end"
