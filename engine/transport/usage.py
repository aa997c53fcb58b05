"""Counts what each leased request generates, and says so for the ledger.

Knows nothing of Redis or Postgres. Invariants: a request that was opened gets one record with a
finish reason, of its latest lease, unless it is handed over; every count is absolute, and never
more than what was observed, which is what is handed to the API process in the same step.
"""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass

from engine.messages import (
    Abort,
    EngineRequest,
    FinishReason,
    TokenOutput,
    UsageAuthor,
    UsageRecord,
)

CHECKPOINT_TOKENS = 64  # what a double fault (engine and API process at once) can leave unbilled


@dataclass(slots=True)
class _Account:
    tenant_id: str
    api_id: str
    epoch: int
    adapter_digest: str | None
    num_prompt_tokens: int
    queue_ms: int
    num_generated_tokens: int
    num_cached_tokens: int = 0
    num_reasoning_tokens: int = 0
    adapter_load_ms: int = 0
    num_recorded_tokens: int = 0


class UsageMeter:
    """One per engine process; any thread may call it."""

    def __init__(self, engine_id: str) -> None:
        self._engine_id = engine_id
        self._accounts: dict[str, _Account] = {}
        self._lock = threading.Lock()

    def open(self, request: EngineRequest) -> None:
        """The request has been leased."""
        self.open_unread(
            request.request_id,
            tenant_id=request.tenant_id,
            api_id=request.api_id,
            epoch=request.epoch,
            num_prompt_tokens=len(request.prompt_token_ids),
            queue_ms=request.queue_ms,
            adapter_digest=None if request.adapter is None else request.adapter.digest,
            num_generated_tokens=len(request.delivered_token_ids),
            num_reasoning_tokens=request.num_reasoning_tokens,
        )

    def open_unread(
        self,
        request_id: str,
        *,
        tenant_id: str,
        api_id: str,
        epoch: int,
        num_prompt_tokens: int,
        queue_ms: int,
        adapter_digest: str | None = None,
        num_generated_tokens: int = 0,
        num_reasoning_tokens: int = 0,
    ) -> None:
        """The same where the message itself cannot be read."""
        account = _Account(
            tenant_id=tenant_id,
            api_id=api_id,
            epoch=epoch,
            adapter_digest=adapter_digest,
            num_prompt_tokens=num_prompt_tokens,
            queue_ms=queue_ms,
            num_generated_tokens=num_generated_tokens,
            num_reasoning_tokens=num_reasoning_tokens,
            num_recorded_tokens=num_generated_tokens,
        )
        with self._lock:
            self._accounts[request_id] = account

    def observe(self, outputs: Iterable[TokenOutput]) -> list[UsageRecord]:
        """What is due once these outputs are handed over: ends, and checkpoints."""
        with self._lock:
            records = [self._observe(output) for output in outputs]
        return [record for record in records if record is not None]

    def end(self, request_id: str, epoch: int, reason: str) -> UsageRecord | None:
        """The request ends without an output. None where it is not, or no longer, here."""
        with self._lock:
            account = self._accounts.get(request_id)
            if account is None or account.epoch != epoch:
                return None
            return self._record(request_id, account, reason)

    def requests_by_api(self) -> dict[str, list[Abort]]:
        """What is in flight by API process, as what would abort it."""
        found = defaultdict(list)
        with self._lock:
            for request_id, account in self._accounts.items():
                found[account.api_id].append(Abort(request_id=request_id, epoch=account.epoch))
        return found

    def request_ids(self) -> list[str]:
        """What is in flight here."""
        with self._lock:
            return list(self._accounts)

    def _observe(self, output: TokenOutput) -> UsageRecord | None:
        account = self._accounts.get(output.request_id)
        if account is None or account.epoch != output.epoch:
            return None
        account.num_generated_tokens = max(
            account.num_generated_tokens, output.num_generated_tokens
        )
        account.num_cached_tokens = max(account.num_cached_tokens, output.num_cached_tokens)
        account.num_reasoning_tokens = max(
            account.num_reasoning_tokens, output.num_reasoning_tokens
        )
        account.adapter_load_ms = max(account.adapter_load_ms, output.adapter_load_ms)
        if output.finish_reason is FinishReason.HAND_OVER:
            del self._accounts[output.request_id]
            return self._record(output.request_id, account, None)
        if output.finish_reason is not None:
            reason = output.finish_reason.value if output.error is None else output.error.code
            return self._record(output.request_id, account, reason)
        if account.num_generated_tokens - account.num_recorded_tokens >= CHECKPOINT_TOKENS:
            return self._record(output.request_id, account, None)
        return None

    def _record(self, request_id: str, account: _Account, reason: str | None) -> UsageRecord:
        account.num_recorded_tokens = account.num_generated_tokens
        if reason is not None:
            del self._accounts[request_id]
        return UsageRecord(
            author=UsageAuthor.ENGINE,
            request_id=request_id,
            tenant_id=account.tenant_id,
            epoch=account.epoch,
            num_prompt_tokens=account.num_prompt_tokens,
            num_generated_tokens=account.num_generated_tokens,
            num_cached_tokens=account.num_cached_tokens,
            num_reasoning_tokens=account.num_reasoning_tokens,
            adapter_digest=account.adapter_digest,
            finish_reason=reason,
            engine_id=self._engine_id,
            queue_ms=account.queue_ms,
            adapter_load_ms=account.adapter_load_ms,
        )
