"""What a client is told where a limit refuses it: which limit, whose, how far, and when it frees.

Knows nothing of Redis. Invariants: `retry-after` is given where waiting helps within a minute, and
then it is at most 60 s, since some SDKs sleep for all of it; elsewhere the answer says not to retry
and names the time in its body.
"""

from __future__ import annotations

from datetime import UTC, datetime

from app.admission.headers import go_duration, ratelimit_headers
from app.admission.messages import NANOS_PER_MICRO, Check, CountedLimit, Decision
from app.errors import MAX_RETRY_AFTER_S, NO_RETRY, ApiError, RateLimitedError
from app.plans.limits import BUDGETS, Kind

_WHOSE = {"tenant": "your organization", "key": "this API key", "adapter": "this adapter"}
_UNITS = {
    Kind.REQUESTS_PER_MINUTE: "requests per minute",
    Kind.TOKENS_PER_MINUTE: "tokens per minute",
    Kind.TOKENS_PER_DAY: "tokens per day",
    Kind.TOKENS_PER_MONTH: "tokens per month",
    Kind.COST_PER_MONTH: "millionths of the currency per month",
    Kind.CONCURRENCY: "requests in flight",
    Kind.QUEUE_DEPTH: "requests waiting",
}
_TYPES = {
    Kind.REQUESTS_PER_MINUTE: "requests",
    Kind.QUEUE_DEPTH: "requests",
    Kind.CONCURRENCY: "concurrency",
}
NEVER_MS = -1
_NEVER = "It lets nothing pass."
_TOO_LARGE = "It can never be admitted: make it smaller."


def refusal_of(decision: Decision) -> ApiError:
    """The error for a refused request: of the hard limit that bars it for longest."""
    over = [
        (limit, check)
        for limit, check in decision.checked()
        if check.is_over and limit.mode == "hard"
    ]
    limit, check = max(over, key=lambda pair: _severity(pair[1]))
    message = _describe(limit, check)
    details = _details(limit, check, decision.verdict.now_ms)
    headers = ratelimit_headers(decision)
    kind = _TYPES.get(limit.kind, "tokens")
    if check.free_ms == NEVER_MS:
        return ApiError(
            429,
            "request_exceeds_limit",
            kind,
            f"{message} {_NEVER if limit.limit == 0 else _TOO_LARGE}",
            headers={**headers, **NO_RETRY},
            details=details,
        )
    wait_s = check.free_ms / 1000
    if wait_s <= MAX_RETRY_AFTER_S + 2:  # a window of a minute has a granularity
        code = "queue_full" if limit.kind is Kind.QUEUE_DEPTH else "rate_limit_exceeded"
        error = RateLimitedError(message, code=code, type=kind, retry_after_s=wait_s)
        error.headers.update(headers)
        error.details.update(details)
        return error
    headers["x-ratelimit-reset-tokens"] = go_duration(check.free_ms)
    code = "rate_limit_exceeded"
    if limit.kind in BUDGETS:
        code = kind = "insufficient_quota"
    return ApiError(429, code, kind, message, headers={**headers, **NO_RETRY}, details=details)


def shown(limit: CountedLimit, amount: int) -> int:
    """An amount in the units that its limit was set in; money is rounded up."""
    return -(-amount // NANOS_PER_MICRO) if limit.kind is Kind.COST_PER_MONTH else amount


def _severity(check: Check) -> float:
    return float("inf") if check.free_ms == NEVER_MS else check.free_ms


def _describe(limit: CountedLimit, check: Check) -> str:
    used, amount = shown(limit, check.used), shown(limit, check.amount)
    return (
        f"The limit of {_WHOSE[limit.scope]} is {shown(limit, limit.limit)} {_UNITS[limit.kind]}:"
        f" {used} used, {amount} requested."
    )


def _details(limit: CountedLimit, check: Check, now_ms: int) -> dict[str, object]:
    at_ms = now_ms + max(check.free_ms, 0)
    return {
        "limit": {
            "kind": limit.kind.value,
            "scope": limit.scope,
            "id": limit.subject_id,
            "limit": shown(limit, limit.limit),
            "used": shown(limit, check.used),
            "requested": shown(limit, check.amount),
        },
        "reset_at": None
        if check.free_ms == NEVER_MS
        else datetime.fromtimestamp(at_ms / 1000, UTC).isoformat(timespec="seconds"),
    }
