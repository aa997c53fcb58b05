"""`x-ratelimit-*` of an answer, as OpenAI sends them.

Knows nothing of HTTP. Invariant: they tell of the limit with least room, and are absent where there
is no limit to tell of.
"""

from __future__ import annotations

from app.admission.messages import Check, CountedLimit, Decision
from app.plans.limits import Kind

_REQUESTS = (Kind.REQUESTS_PER_MINUTE,)
_TOKENS = (Kind.TOKENS_PER_MINUTE, Kind.TOKENS_PER_DAY, Kind.TOKENS_PER_MONTH)
SECOND_MS, MINUTE_MS, HOUR_MS = 1000, 60_000, 3_600_000


def ratelimit_headers(decision: Decision) -> dict[str, str]:
    """The headers after this decision. Budgets of money are told of nowhere but in errors."""
    headers: dict[str, str] = {}
    for name, kinds in (("requests", _REQUESTS), ("tokens", _TOKENS)):
        found = [
            (_remaining(decision, limit, check), limit, check)
            for limit, check in decision.checked()
            if limit.kind in kinds and limit.mode == "hard"
        ]
        if not found:
            continue
        remaining, limit, check = min(found, key=lambda each: each[0])
        reset_ms = max(check.reset_ms, 0)
        headers |= {
            f"x-ratelimit-limit-{name}": str(limit.limit),
            f"x-ratelimit-remaining-{name}": str(remaining),
            f"x-ratelimit-reset-{name}": go_duration(reset_ms),
        }
    return headers


def go_duration(ms: int) -> str:
    """As Go writes it: `12ms`, `1.5s`, `6m0s`, `30h0m1s`."""
    if ms < SECOND_MS:
        return f"{ms}ms"
    seconds = f"{ms % MINUTE_MS / SECOND_MS:g}s"
    if ms < MINUTE_MS:
        return seconds
    minutes = f"{ms % HOUR_MS // MINUTE_MS}m{seconds}"
    return minutes if ms < HOUR_MS else f"{ms // HOUR_MS}h{minutes}"


def _remaining(decision: Decision, limit: CountedLimit, check: Check) -> int:
    taken = check.amount if decision.verdict.status == "admitted" else 0
    return max(0, limit.limit - check.used - taken)
