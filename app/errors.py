"""Every error a client can be given, as one tree.

    ApiError                        status, stable code, public message; an internal one stays here
    ├── BadRequestError             400 the request is malformed or asks for what is not there
    ├── UnauthorizedError           401 no key, a wrong one, a disabled or expired one
    ├── PermissionDeniedError       403 the key lacks a scope
    ├── NotFoundError               404 absent, or another tenant's: the same bytes
    ├── ModelNotFoundError          404 the same for `model`
    ├── ConflictError               409 admin routes only; told not to retry
    ├── PreconditionFailedError     412 the object is not in the state that `If-Match` named
    ├── PayloadTooLargeError        413
    ├── UnsupportedMediaTypeError   415
    ├── UnprocessableError          422 admin routes only; told not to retry
    ├── RateLimitedError            429 with `retry-after`
    └── UnavailableError            503 with `retry-after`

Knows nothing of HTTP frameworks (`app.error_handlers` turns these into responses). Invariant: only
`message`, `type`, `param`, `code` and `details` leave the process; `internal` is for the log.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

MAX_RETRY_AFTER_S = 60  # openai-node 6 sleeps for the whole of it, whatever it says
NO_RETRY = {"x-should-retry": "false"}


class ApiError(Exception):
    """An answer that is not success. `details` are extra members of the body's `error` object."""

    def __init__(
        self,
        status: int,
        code: str,
        type: str,
        message: str,
        *,
        param: str | None = None,
        headers: Mapping[str, str] | None = None,
        internal: str | None = None,
        details: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__(f"{status} {code}: {internal or message}")
        self.status = status
        self.code = code
        self.type = type
        self.message = message
        self.param = param
        self.headers = dict(headers or {})
        self.internal = internal
        self.details = dict(details or {})

    def again(self, **details: Any) -> ApiError:
        """The same for another request: a raised one keeps alive all that led to it."""
        return ApiError(
            self.status,
            self.code,
            self.type,
            self.message,
            param=self.param,
            headers=self.headers,
            internal=self.internal,
            details={**self.details, **details},
        )

    def body(self) -> dict[str, Any]:
        """OpenAI's error body: `{"error": {"message", "type", "param", "code", ...details}}`."""
        error = {
            "message": self.message,
            "type": self.type,
            "param": self.param,
            "code": self.code,
        }
        return {"error": {**error, **self.details}}


class BadRequestError(ApiError):
    def __init__(
        self,
        message: str,
        *,
        code: str = "invalid_value",
        param: str | None = None,
    ) -> None:
        super().__init__(400, code, "invalid_request_error", message, param=param)


class UnauthorizedError(ApiError):
    def __init__(self, message: str, *, code: str = "invalid_api_key") -> None:
        super().__init__(
            401, code, "invalid_request_error", message, headers={"www-authenticate": "Bearer"}
        )


class PermissionDeniedError(ApiError):
    def __init__(self, message: str, *, code: str = "insufficient_permissions") -> None:
        super().__init__(403, code, "permission_error", message)


class NotFoundError(ApiError):
    """`message` must not depend on whether the object exists under another tenant."""

    def __init__(self, message: str = "Not found.", *, param: str | None = None) -> None:
        super().__init__(404, "not_found", "invalid_request_error", message, param=param)


class ModelNotFoundError(ApiError):
    def __init__(self, model: str) -> None:
        super().__init__(
            404,
            "model_not_found",
            "invalid_request_error",
            f"The model {shorten(model)!r} does not exist or you do not have access to it.",
            param="model",
        )


class ConflictError(ApiError):
    def __init__(
        self,
        message: str,
        *,
        code: str,
        param: str | None = None,
        details: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__(
            409, code, "conflict", message, param=param, headers=NO_RETRY, details=details
        )


class PreconditionFailedError(ApiError):
    def __init__(self, message: str, *, code: str, details: Mapping[str, Any]) -> None:
        super().__init__(
            412, code, "conflict", message, param="if-match", headers=NO_RETRY, details=details
        )


class PayloadTooLargeError(ApiError):
    def __init__(
        self, message: str, *, code: str = "request_too_large", param: str | None = None
    ) -> None:
        super().__init__(413, code, "invalid_request_error", message, param=param)


class UnsupportedMediaTypeError(ApiError):
    def __init__(self, message: str, *, code: str, param: str | None = None) -> None:
        super().__init__(415, code, "invalid_request_error", message, param=param, headers=NO_RETRY)


class UnprocessableError(ApiError):
    def __init__(self, message: str, *, code: str, param: str | None = None) -> None:
        super().__init__(422, code, "invalid_request_error", message, param=param, headers=NO_RETRY)


class RateLimitedError(ApiError):
    """`type` says which limit: `requests`, `tokens` or `concurrency`; seconds are rounded up."""

    def __init__(
        self,
        message: str = "Too many requests. Please try again later.",
        *,
        code: str = "rate_limit_exceeded",
        type: str,
        retry_after_s: float,
    ) -> None:
        super().__init__(429, code, type, message, headers=retry_after(retry_after_s))


class UnavailableError(ApiError):
    def __init__(
        self,
        message: str = "The service is temporarily unavailable. Please try again.",
        *,
        code: str = "dependency_unavailable",
        internal: str | None = None,
        retry_after_s: float = 1.0,
    ) -> None:
        super().__init__(
            503,
            code,
            "server_error",
            message,
            headers=retry_after(retry_after_s),
            internal=internal,
        )


def retry_after(seconds: float) -> dict[str, str]:
    """The `retry-after` header: whole seconds, at least 1, at most `MAX_RETRY_AFTER_S`."""
    return {"retry-after": str(min(max(1, math.ceil(seconds)), MAX_RETRY_AFTER_S))}


def shorten(text: str, limit: int = 200) -> str:
    """`text` as it may stand in an error message: a client's megabyte is not sent back."""
    return text if len(text) <= limit else f"{text[:limit]}..."
