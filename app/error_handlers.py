"""Turns every exception of an application into OpenAI's error body.

Knows nothing of routes. Invariant: whatever fails, the answer is JSON of `ApiError.body()`'s shape,
and nothing of an unexpected exception is in it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import structlog
from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException
from starlette.types import Receive, Scope, Send

from app.errors import (
    ApiError,
    BadRequestError,
    NotFoundError,
    PayloadTooLargeError,
    UnavailableError,
    shorten,
)
from app.idempotency.answered import AnsweredBefore
from engine.transport.errors import QueueUnavailableError

log = structlog.get_logger()


def install_error_handlers(app: FastAPI) -> None:
    app.add_exception_handler(ApiError, _answer_api_error)
    app.add_exception_handler(AnsweredBefore, _answer_again)
    app.add_exception_handler(RequestValidationError, _answer_validation_error)
    app.add_exception_handler(HTTPException, _answer_http_exception)
    app.add_exception_handler(QueueUnavailableError, _answer_queue_failure)


def error_response(error: ApiError) -> Response:
    return _ErrorResponse(error)


class _ErrorResponse(JSONResponse):
    """Leaves the error's code with the request, for the log and the metrics (`RequestEdge`)."""

    def __init__(self, error: ApiError) -> None:
        super().__init__(error.body(), status_code=error.status, headers=error.headers)
        self._code = error.code

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        scope.setdefault("state", {})["error_code"] = self._code
        await super().__call__(scope, receive, send)


def internal_error() -> ApiError:
    """What a client learns of a mistake of ours."""
    return ApiError(500, "internal_error", "server_error", "The server had an error.")


async def _answer_api_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, ApiError)
    if error.status >= 500 or error.internal is not None:
        log.warning("request_failed", code=error.code, status=error.status, detail=error.internal)
    return error_response(error)


async def _answer_again(request: Request, answered: Exception) -> Response:
    assert isinstance(answered, AnsweredBefore)
    return Response(
        answered.body,
        status_code=answered.status,
        media_type="application/json",
        headers={"idempotent-replayed": "true"},
    )


async def _answer_validation_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)
    return error_response(from_validation(error.errors()))


async def _answer_queue_failure(request: Request, error: Exception) -> Response:
    return await _answer_api_error(request, UnavailableError(internal=f"queue: {error}"))


async def _answer_http_exception(request: Request, error: Exception) -> Response:
    """Errors of the framework itself: no such route, wrong method, unreadable body."""
    assert isinstance(error, HTTPException)
    return error_response(_from_http_exception(error))


def _from_http_exception(error: HTTPException) -> ApiError:
    match error.status_code:
        case 404:
            return NotFoundError()
        case 405:
            return ApiError(
                405,
                "method_not_allowed",
                "invalid_request_error",
                "The method is not allowed for this path.",
                headers=error.headers,
            )
        case 408:
            return ApiError(
                408,
                "body_timeout",
                "timeout",
                "The request body did not arrive in time.",
                headers={"connection": "close"},
            )
        case 413:
            return PayloadTooLargeError("The request body is too large.")
        case 400:
            return BadRequestError("The request body could not be read.", code="invalid_body")
        case status:
            return ApiError(status, "request_refused", "invalid_request_error", "Refused.")


def from_validation(errors: Sequence[Any]) -> BadRequestError:
    """The first of pydantic's findings, named as OpenAI names it; `param` is the field."""
    first = errors[0]
    param = _param(first["loc"])
    match first["type"]:
        case "json_invalid":
            return BadRequestError("The request body is not valid JSON.", code="invalid_json")
        case "extra_forbidden":
            message = f"Unknown parameter: '{param}'."
            return BadRequestError(message, code="unknown_parameter", param=param)
        case "missing" if param is None:
            return BadRequestError("A JSON object is expected as the body.", code="invalid_json")
        case "missing":
            message = f"Missing required parameter: '{param}'."
            return BadRequestError(message, code="missing_required_parameter", param=param)
        case kind:
            code = "invalid_type" if kind.endswith(("_type", "_parsing")) else "invalid_value"
            message = f"Invalid value for '{param}': {first['msg']}."
            return BadRequestError(message, code=code, param=param)


def _param(location: Sequence[str | int]) -> str | None:
    """`("body", "messages", 0, "content")` -> `messages[0].content`."""
    path = ""
    for step in location[1:]:
        path += f"[{step}]" if isinstance(step, int) else f".{step}" if path else step
    return shorten(path) if path else None
