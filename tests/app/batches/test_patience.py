"""What a later try may find otherwise is tried again; nothing else is, and nothing for ever."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from app.batches.patience import MAX_FAILURES, Patience
from app.errors import (
    NO_RETRY,
    ApiError,
    BadRequestError,
    ModelNotFoundError,
    PermissionDeniedError,
    RateLimitedError,
    UnavailableError,
)

NOW = datetime(2026, 1, 1, tzinfo=UTC)
EXPIRES = NOW + timedelta(hours=24)


def budget(frees_after: timedelta | None) -> ApiError:
    reset_at = None if frees_after is None else (NOW + frees_after).isoformat(timespec="seconds")
    return ApiError(
        429, "insufficient_quota", "x", "spent", headers=NO_RETRY, details={"reset_at": reset_at}
    )


@pytest.mark.parametrize(
    ("error", "wait_s"),
    [
        (BadRequestError("no"), None),
        (ModelNotFoundError("m"), None),
        (PermissionDeniedError("no"), None),
        (ApiError(500, "request_poisoned", "server_error", "x", headers=NO_RETRY), None),
        (RateLimitedError(type="tokens", retry_after_s=7), 7.0),
        (PermissionDeniedError("suspended", code="tenant_suspended"), 30.0),
        (UnavailableError(code="overloaded", retry_after_s=9), 9.0),
        (ApiError(408, "queue_timeout", "timeout", "x"), 1.0),
        (budget(timedelta(hours=1)), 3600.0),
        (budget(timedelta(hours=25)), None),
        (budget(None), None),
    ],
)
def test_a_line_waits_for_what_may_change_and_is_answered_with_the_rest(
    error: ApiError, wait_s: float | None
) -> None:
    assert Patience(EXPIRES).wait_after(error, NOW) == wait_s


def test_failures_of_engines_are_tried_again_so_often_and_waits_without_end() -> None:
    lost, waiting = Patience(EXPIRES), Patience(EXPIRES)
    waits = [lost.wait_after(UnavailableError(code="engine_lost"), NOW) for _ in range(9)]
    assert waits.index(None) == MAX_FAILURES - 1
    assert lost.may_have_run
    timeout = ApiError(408, "queue_timeout", "timeout", "x")
    waits = [waiting.wait_after(timeout, NOW) for _ in range(1000)]
    assert None not in waits and max(waits) == 30.0
    assert waiting.may_have_run  # on an engine that died, before it found no other in time
    limited = Patience(EXPIRES)
    limited.wait_after(RateLimitedError(type="tokens", retry_after_s=7), NOW)
    assert not limited.may_have_run
