"""What a client is told when an engine or the queue could not serve its request.

Knows nothing of HTTP frameworks. Invariant: only codes listed here are shown; any other failure is
`internal_error`, with its code and message kept for the log.
"""

from __future__ import annotations

from app.errors import NO_RETRY, ApiError, BadRequestError, UnavailableError
from engine.messages import EngineError

# What no engine will ever serve, and the code a client knows it by: 400, which no SDK retries.
_REFUSALS = {
    "adapter_too_large": "adapter_too_large",
    "invalid_prompt": "invalid_prompt",
    "request_too_large": "context_length_exceeded",
}
# Failures that a retry may find gone: 503, which every SDK retries.
_UNAVAILABLE = frozenset(
    {
        "adapter_corrupt",
        "adapter_load_failed",
        "adapter_missing",
        "adapter_uncertified",
        "engine_lost",
        "output_lost",
        "queue_unavailable",
        "server_shutting_down",
    }
)
_TIMEOUTS = frozenset({"queue_timeout", "client_too_slow"})
# Failures of this one request, that it would meet again: 500, and the SDKs are told not to retry.
_FAILED_FOR_GOOD = frozenset({"nonfinite_logits", "request_poisoned"})
# What was there when the request was accepted, and is not any more.
_GONE = frozenset({"adapter_deleted"})


def to_api_error(error: EngineError | None) -> ApiError:
    """The answer for a sequence that ended with `error` (None: it was aborted from elsewhere)."""
    if error is None:
        return UnavailableError("The request was interrupted.", code="engine_lost")
    if error.code in _REFUSALS:
        return BadRequestError(error.message, code=_REFUSALS[error.code])
    if error.code in _TIMEOUTS:
        return ApiError(408, error.code, "timeout", error.message)
    if error.code in _UNAVAILABLE:
        return UnavailableError(error.message, code=error.code)
    if error.code in _GONE:
        return ApiError(404, error.code, "invalid_request_error", error.message, headers=NO_RETRY)
    if error.code in _FAILED_FOR_GOOD:
        return ApiError(500, error.code, "server_error", error.message, headers=NO_RETRY)
    return ApiError(
        500,
        "internal_error",
        "server_error",
        "The server had an error.",
        internal=f"engine: {error.code}: {error.message}",
    )
